"""Lets `python -m` run the command line, under whatever name the package has."""

from .cli import main

if __name__ == "__main__":
    main()
