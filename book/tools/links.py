"""Follow every link of the book that leads out of it, by Sphinx's own check. Needs the network.

python book/tools/links.py          # `make links`; the list of all is _build/links/output.txt
"""

import json
import shutil
import sys
import urllib.error
import urllib.request

import render
from nbkit import BUILD

OUT = BUILD / "links"
KNOWN = "https://arxiv.org"  # answers wherever there is a network


def reachable(address: str) -> bool:
    try:
        urllib.request.urlopen(address, timeout=20).close()
    except urllib.error.HTTPError:
        return True  # it answered
    except OSError:
        return False
    return True


def main() -> int:
    if not reachable(KNOWN):
        print(f"links: this needs the network, and {KNOWN} does not answer from here")
        return 1
    folder, out = BUILD / "stage" / OUT.name, BUILD / "render" / OUT.name
    render.stage(folder, None, [])
    render.build(folder, out, strict=False, builder="linkcheck")
    shutil.rmtree(OUT, ignore_errors=True)
    shutil.move(out / "_build" / "linkcheck", OUT)
    lines = [json.loads(line) for line in (OUT / "output.json").read_text().splitlines()]
    broken = [line for line in lines if line["status"] == "broken"]
    for line in broken:
        print(f"  {line['filename']}: {line['uri']} ({line['info'][:80]})")
    print(f"links: {len(lines)} links followed, {len(broken)} broken")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
