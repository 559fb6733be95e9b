"""Says what is installed, whether it fits together, what is usable, and what to type to mend the rest."""

import argparse
import json

from rich.console import Console

from faceter import __version__
from faceter.tools.doctor.diagnosis import can_train
from faceter.tools.doctor.facts import gather
from faceter.tools.doctor.report import as_json, print_report
from faceter.tools.launch import run


def main(argv: list[str] | None = None) -> int:
    """Print the report; 0 if training is usable on some device, else 1."""
    parser = argparse.ArgumentParser(prog="faceter doctor", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    args = parser.parse_args(argv)
    facts = gather()
    if args.json:
        print(json.dumps(as_json(facts, __version__), indent=2))
    else:
        print_report(facts, __version__, Console())
    return 0 if can_train(facts) else 1


if __name__ == "__main__":
    run(main)
