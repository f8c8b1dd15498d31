"""Lets `python -m` run the command line, under whatever name the package has."""

import sys

try:
    from .cli import main
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] not in ("click", "tqdm", "tomli"):
        raise
    sys.stderr.write(
        f"Error: this Python ({sys.executable}) has no `{error.name}`, which the tools need: "
        "pip install '.[tools]' in the folder of this repository\n"
    )
    raise SystemExit(2) from None

if __name__ == "__main__":
    main()
