"""Reports keep what was found, and programs can rely on their shape."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from tools import report
from tools.report import Failure, FileReport
from tools.site import Outcome, Site

SCHEMA = json.loads((Path(report.__file__).parent / "schemas" / "report.schema.json").read_text())
FILES = [
    FileReport(
        "a.py",
        (
            Site(7, 9, "bookkeeping block", "gated", Outcome.REWRITTEN, "the counter moved on a skip", 8),
            Site(3, 5, "clip guard", "clip-guard", Outcome.LEFT, "clipping belongs to every attempt"),
            Site(9, 1, "counter", "unclear", Outcome.REFUSED, "two optimizers; name one"),
            Site(11, 1, "bookkeeping block", "already-right", Outcome.RIGHT, "asks the flag"),
        ),
    ),
    FileReport("b.py", failure=Failure("syntax error", 4, 2)),
    FileReport("c.py"),
]


def test_text_has_a_line_a_site_with_the_place_the_code_and_the_verdict():
    lines = report.as_text(FILES).splitlines()
    assert lines[0] == "a.py:7:9: gated: would rewrite bookkeeping block (then line 8): the counter moved on a skip"
    assert lines[1] == "a.py:3:5: clip-guard: left clip guard: clipping belongs to every attempt"
    assert lines[-1] == "3 files: 1 to rewrite, 1 right, 1 refused, 1 left, 1 unreadable"
    assert report.failure_line(FILES[1]) == "b.py:4:2: unreadable: syntax error"
    assert report.failure_line(FileReport("x", failure=Failure("no"))) == "x: unreadable: no"


def test_what_was_done_is_said_as_done():
    (site, *_) = FILES[0].sites
    done = "a.py:7:9: gated: rewritten bookkeeping block (now line 8): the counter moved on a skip"
    assert report.text_line("a.py", site) == done
    assert report.summary(FILES) == "3 files: 1 rewritten, 1 right, 1 refused, 1 left, 1 unreadable"


def test_json_is_valid_against_its_schema_and_says_the_same():
    document = json.loads(report.as_json(report.document(FILES, upstream="u", base="b", series="s")))
    jsonschema.validate(document, SCHEMA)
    assert document["totals"] == {"files": 3, "rewritten": 1, "right": 1, "refused": 1, "left": 1, "unreadable": 1}
    assert document["files"][0]["sites"][0]["new_line"] == 8
    assert document["files"][1]["failure"] == {"message": "syntax error", "line": 4, "col": 2}


@pytest.mark.parametrize(
    "break_it",
    [
        lambda d: d["files"][0]["sites"][0].update(outcome="maybe"),
        lambda d: d["files"][0]["sites"][0].update(line=0),
        lambda d: d["files"][0]["sites"][0].update(code="Not A Code"),
        lambda d: d["files"][0].pop("failure"),
        lambda d: d.update(extra=1),
        lambda d: d.update(format="applied-updates.report/2"),
    ],
)
def test_the_schema_is_not_content_with_anything(break_it):
    document = report.document(FILES)
    break_it(document)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, SCHEMA)


def test_the_schema_describes_every_field_that_is_not_plain():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert set(SCHEMA["$defs"]["site"]["properties"]["outcome"]["enum"]) == {outcome.value for outcome in Outcome}


def test_only_files_with_something_to_change_need_a_change():
    assert [file.needs_change for file in FILES] == [True, False, False]


class TestSarif:
    def test_the_log_is_valid_sarif(self):
        model = pytest.importorskip("pydantic_sarif.model", reason="the SARIF 2.1.0 schema comes with pydantic-sarif")
        document = json.loads(report.as_json(report.sarif(FILES)))
        model.StaticAnalysisResultsFormatSarifVersion210JsonSchema.model_validate(document)
        document["runs"][0]["results"][0]["level"] = "awful"
        with pytest.raises(ValueError, match="level"):
            model.StaticAnalysisResultsFormatSarifVersion210JsonSchema.model_validate(document)

    def test_it_holds_what_needs_a_change_and_what_could_not_be_read(self):
        (run,) = report.sarif(FILES)["runs"]
        assert [(result["ruleId"], result["level"]) for result in run["results"]] == [
            ("gated", "warning"),
            ("unclear", "error"),
        ]
        assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["gated", "unclear"]
        place = run["results"][0]["locations"][0]["physicalLocation"]
        assert place == {"artifactLocation": {"uri": "a.py"}, "region": {"startLine": 7, "startColumn": 9}}
        (invocation,) = run["invocations"]
        assert not invocation["executionSuccessful"]
        assert invocation["toolExecutionNotifications"][0]["message"]["text"] == "syntax error"

    def test_paths_become_uris(self):
        site = FILES[0].sites[0]
        uris = [
            report.sarif([FileReport(path, (site,))])["runs"][0]["results"][0]["locations"][0]["physicalLocation"][
                "artifactLocation"
            ]["uri"]
            for path in ("a b.py", "/x/a.py")
        ]
        assert uris == ["a%20b.py", "file:///x/a.py"]
