"""What statements do to sums and buffers."""

import ast

import pytest

from tools.loop.gathering import cleared, gathers, is_empty


def statement(text):
    (node,) = ast.parse(text).body
    return node


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a += b", ["a"]),
        ("a -= b", ["a"]),
        ("a.b += c", ["a.b"]),
        ("a['b'] += c", ["a['b']", "a"]),
        ("a[i] += c", ["a"]),
        ("a.append(b)", ["a"]),
        ("a.appendleft(b)", ["a"]),
        ("a.extend(b)", ["a"]),
        ("a.insert(0, b)", ["a"]),
        ("a.add(b)", ["a"]),
        ("a.update(b)", ["a"]),
        ("a['b'].append(c)", ["a['b']", "a"]),
        ("a.clear()", []),
        ("append(a)", []),
        ("a = a + b", ["a"]),
        ("a = max(a, b)", ["a"]),
        ("a = a + b if c else a", ["a"]),
        ("a: float = a + b", ["a"]),
        ("a['x'] = a['x'] + b", ["a['x']"]),
        ("a[i] = a[i] + b", ["a"]),
        ("a = b + c", []),
        ("a = a", []),
        ("a, b = a + 1, 2", ["a"]),
        ("a.b(c)", []),
    ],
)
def test_what_a_statement_adds_to(text, found):
    assert gathers(statement(text)) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a.clear()", ["a"]),
        ("a.zero_()", ["a"]),
        ("a.reset()", ["a"]),
        ("a.b.reset()", ["a.b"]),
        ("a.step()", []),
        ("a[i].reset()", []),
        ("a -= a", ["a"]),
        ("a -= b", []),
        ("a += a", []),
        ("a *= 0", ["a"]),
        ("a *= 0.0", ["a"]),
        ("a *= 2", []),
        ("a *= b", []),
        ("a += 0", []),
        ("del a[:]", ["a"]),
        ("del a[:], b[:]", ["a", "b"]),
        ("del a", []),
        ("a = 0", ["a"]),
        ("a = b", []),
        ("a['x'] = 0", ["a['x']"]),
        ("a[i] = 0", ["a"]),
        ("a[:] = []", ["a"]),
        ("a, b = 0, c", ["a"]),
        ("return_value", []),
        ("f()", []),
    ],
)
def test_what_a_statement_sets_back(text, found):
    assert cleared(statement(text), None) == found


@pytest.mark.parametrize("text", ["a.clear()", "a -= a", "a *= 0", "del a[:]", "a = 0", "a[i] = 0"])
def test_only_what_is_gathered_is_set_back(text):
    assert cleared(statement(text), {"a"}) == ["a"]
    assert cleared(statement(text), {"b"}) == []


def test_an_item_is_set_back_where_its_container_gathers():
    assert cleared(statement("a['x'] = 0"), {"a"}) == ["a['x']"]


@pytest.mark.parametrize(
    "text",
    [
        *("0", "None", "''", "-1", "[]", "()", "{0}", "[0, [], 0.0]", "{}", "{'a': 0, 'b': []}"),
        *("{k: 0 for k in keys}", "[0 for _ in keys]", "[0] * 8", "list()", "dict()", "set()", "defaultdict(float)"),
        *("torch.zeros(1)", "np.empty(3)", "torch.tensor(0.0)", "torch.zeros_like(x)", "deque(maxlen=3)", "Counter()"),
        *("AverageMeter()", "MeanMetric()", "LossTracker()", "Accumulator()", "float()", "int()", "x.new_zeros(1)"),
    ],
)
def test_what_a_sum_or_a_buffer_starts_from(text):
    assert is_empty(ast.parse(text, mode="eval").body)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "a",
            "a.b",
            "[0, a]",
            "(a,)",
            "{a}",
            "{'a': 0, 'b': c}",
            "{k: v for k, v in x}",
            "[x for x in y]",
            "[a] * 8",
        ),
        *(
            "0 + 1",
            "-a",
            "not a",
            "model(batch)",
            "mylist()",
            "settings()",
            "f()()",
            "loss.item()",
            "lambda: 0",
            "8 + 0",
        ),
    ],
)
def test_what_holds_something_is_no_start(text):
    assert not is_empty(ast.parse(text, mode="eval").body)
