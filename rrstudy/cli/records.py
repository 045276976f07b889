"""`rr records`: finished runs into the tables of a campaign, and out of them byte for byte."""

from pathlib import Path

from rr.cli.output import log


def add_arguments(parser) -> None:
    ways = parser.add_subparsers(required=True, metavar="import|export", dest="way")
    into = ways.add_parser("import", help="add finished runs to the tables of a campaign")
    into.add_argument("runs", nargs="+", type=Path, help="run folders, or folders of them")
    into.add_argument("--to", required=True, type=Path, help="the campaign, data/measured/NAME")
    out = ways.add_parser("export", help="write records as run folders, byte for byte")
    out.add_argument("folder", type=Path, help="the campaign, data/measured/NAME")
    out.add_argument("ids", nargs="*", metavar="ID", help="ids of runs (default: all)")
    out.add_argument("--out", required=True, type=Path, help="where the run folders are written")


def run(args) -> int:
    from rrstudy.stats import recording

    if args.way == "export":
        for home in recording.export(args.folder, args.out, args.ids):
            print(home)
        return 0
    new, refused = recording.import_runs(args.runs, args.to)
    for one in new:
        result = one.object("result.json")
        print(f"{result['id']}  {result['rung']} {result['rule']} seed {result['seed']}")
    for line in refused:
        log(f"rr: {line}")
    log(f"rr: {len(new)} new records in {args.to}, {len(refused)} runs refused")
    return 2 if refused else 0
