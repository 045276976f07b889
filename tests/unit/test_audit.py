"""The audit: its claims, its rule of verdicts, its table and its lab."""

import csv
import json
import re

import pytest

from rr import DATA, RRError
from rrbook.explorables.audit import FIELDS, PAPERS
from rrbook.explore import audit_rows, audit_table, verdict

with (DATA / "published" / "claims.csv").open() as file:
    CLAIMS = list(csv.DictReader(file))
# one judgement of each kind, by turns, with marks of the right number
KINDS = ([True] * 9, [True, False, None] * 3, [False] * 9, [None] * 9)
FOUND = {
    claim["id"]: (f"shown {place}", KINDS[place % 4][: len(claim["parts"].split(" | "))])
    for place, claim in enumerate(CLAIMS)
}


def test_the_claims_file_is_whole_and_leads_to_sections_of_the_chapter():
    path = DATA.parent / "notebooks" / "12_audit.ipynb"
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    text = "\n".join("".join(cell["source"]) for cell in cells)
    assert len(CLAIMS) >= 25 and {claim["paper"] for claim in CLAIMS} == set(PAPERS)
    for claim in CLAIMS:
        assert list(claim) == list(FIELDS) and all(claim.values()), claim["id"]
        assert claim["words"] in ("quoted", "ours"), claim["id"]
        # words that the papers are not known to have are not put in quotation marks
        assert claim["read"] == "primary" or claim["words"] == "ours", claim["id"]
        assert f"({claim['section']})=" in text, claim["section"]
        assert f'"{claim["id"]}"' in text, f"{claim['id']} is not judged in the chapter"


def test_a_verdict_is_what_its_parts_say():
    said = {
        (True,): "holds",
        (True, True): "holds",
        (False, False): "contradicted",
        (False, None): "contradicted",
        (None, None): "cannot be told",
        (True, None): "holds in part",
        (True, False): "holds in part",
    }
    assert {parts: verdict(parts) for parts in said} == said
    for parts in ([], [1], ["yes"]):
        with pytest.raises(RRError, match="one or more of True, False and None"):
            verdict(parts)


def test_the_verdict_on_the_main_part_is_on_that_part_alone():
    first = {"id": "emerges", "parts": "one | two | three", "main": "2"}
    claim = next(c for c in CLAIMS if c["id"] == "emerges") | first
    for held, said in (
        ([True, False, True], "contradicted"),
        ([False, True, None], "holds"),
        ([True, None, True], "cannot be told"),
    ):
        (row,) = audit_rows([claim], {"emerges": ("shown", held)})
        assert (row["main"], row["main_verdict"]) == ([2], said)
        assert row["verdict"] == "holds in part"
        html = audit_table([row]).html
        assert 'main part: <span class="is-' in html and "<em>main:</em> two</li>" in html


def test_quotations_stand_in_the_abstracts_of_their_papers():
    """ResFormer's version 5 (ACL 2025) and the looped paper's version 1, as arXiv prints them."""
    abstracts = {
        "2410.17897": """ResFormer achieves equivalent validation loss with 16.11% fewer model
            parameters and 20.3% less training data compared to Transformer, while maintaining
            similar memory usage and computational cost. Besides, SVFormer reduces KV cache size by
            nearly half with only a small performance penalty""",
        "2606.18524": """increasing effective depth without adding parameters. […]
            weight sharing makes residual updates correlated across iterations, requiring the
            stronger scaling ε = 1/N. […] A key consequence is that the optimal learning rate
            depends only on the number of unique layers L, not on the loop count N, […] Experiments
            on looped Transformers confirm that 1/N scaling improves trainability and yields better
            loss than 1/√N scaling across loop counts.""",
    }
    abstracts = {paper: " ".join(text.split()) for paper, text in abstracts.items()}
    quoted = [c for c in CLAIMS if c["words"] == "quoted" and c["paper"] in abstracts]
    assert len(quoted) == 7
    for claim in quoted:
        assert claim["claim"] in abstracts[claim["paper"]], claim["id"]


def changed(place=0, **new):
    return [claim | new if i == place else claim for i, claim in enumerate(CLAIMS)]


@pytest.mark.parametrize(
    "claims, found, words",
    [
        (changed(needs=""), FOUND, "has no needs"),
        (changed(parts="one | two | three"), FOUND, "has 3 parts, and 2 are judged"),
        (changed(main="3"), FOUND, "numbers from 1 to 2, got '3'"),
        ([*CLAIMS, CLAIMS[0]], FOUND, "is given twice"),
        (CLAIMS, {k: v for k, v in FOUND.items() if k != "emerges"}, "'emerges' is not judged"),
        (CLAIMS, FOUND | {"emerge": ("", [None])}, "no claim 'emerge' is listed.*emerges"),
    ],
)
def test_what_does_not_fit_is_one_clear_line(claims, found, words):
    with pytest.raises(RRError, match=words):
        audit_rows(claims, found)


def test_the_table_stands_whole_without_scripts():
    rows = audit_rows(CLAIMS, FOUND)
    html = audit_table(rows).html
    assert "<script" not in html and "hidden>" not in html
    assert re.findall(r'<tr role="row" id="claim-([\w-]+)"', html) == [c["id"] for c in CLAIMS]
    known = {True: ("yes", "✓"), False: ("no", "✗"), None: ("cannot be told", "?")}
    for place, row in enumerate(rows):
        part = html.split(f'id="claim-{row["id"]}"')[1].split("</tr>")[0]
        assert f">{row['verdict']}</span>" in part and f"shown {place}" in part
        marks = re.findall(r'<b aria-label="([^"]+):">(.)</b>', part)
        assert marks == [known[held] for held in row["held"]]
        assert ("“" in part) == (row["words"] == "quoted") or "“" in row["claim"]
    # what is written in a claim stays text
    nasty = audit_rows(changed(claim="<b>&</b>"), FOUND)
    assert "&lt;b&gt;&amp;&lt;/b&gt;" in audit_table(nasty).html


def test_the_lab_counts_the_real_modules():
    from rr.model import costs, sizes
    from rrbook.labs.audit import budget

    # the study's own count at 60M, and its gate by hand
    parts = budget("60M", "review")
    assert sum(parts.values()) == 59_470_848
    assert parts["gates"] == 2 * 8 * (2 * 512 * 512 + 512)
    assert parts["embeddings"] == (50257 + 256) * 512
    wide = sizes.arm("60M", "highway", protocol="paper")
    assert sum(budget("60M", "highway").values()) == costs.count(wide)
