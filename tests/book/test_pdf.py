"""The PDF: one document of all pages, with bookmarks, links within, and no line cut off."""

import pdf
import pytest
from nbkit import ROOT

pypdf = pytest.importorskip("pypdf", reason="pypdf reads the PDF that is made here")
pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("pdf")]

FIRST = """<h1>One</h1><p><a href="sub/b.html#there">to b</a> <a href="b.html">gone</a>
<a href="https://example.org/x">out</a></p><div class="highlight"><pre>LONG</pre></div>
<table class="dataframe"><tr>WIDE</tr></table>
<div class="solution dropdown admonition toggle-hidden"><p>hidden answer</p></div>
<p>Set <button class="rr-preset">its_words</button>.</p><button>no_words</button>
<figure class="rr-explorable"><form><input></form><script>document.title = 1</script></figure>"""
SECOND = '<h1>Two <code>c</code></h1><h2 id="there">There</h2><p><a href="#there">up</a></p>'


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """Two small pages with the book's style sheets, as one PDF."""
    site = tmp_path_factory.mktemp("site")
    (site / "sub").mkdir()
    line = "word_" * 60
    first = FIRST.replace("LONG", f"{line}end_of_line")
    first = first.replace("WIDE", "".join(f"<td>column_{i}</td>" for i in range(40)))
    for name, body in (("a", first), ("sub/b", SECOND)):
        up = "../" if "/" in name else ""
        (site / f"{name}.html").write_text(
            f'<!doctype html><head><meta charset="utf-8"><link rel="stylesheet" href="{up}s.css">'
            f'<link rel="stylesheet" href="{up}p.css"></head>'
            f'<article class="bd-article"><section>{body}</section></article>'
        )
    (site / "s.css").write_text((ROOT / "book" / "_static" / "custom.css").read_text())
    (site / "p.css").write_text((ROOT / "book" / "_static" / "print.css").read_text())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pdf, "contents", lambda: ["a", "sub/b"])
        cut = pdf.make(site, site / "out.pdf")
    return pypdf.PdfReader(site / "out.pdf"), cut


def test_chapters_are_bookmarks_in_their_order_and_the_document_is_tagged(printed):
    reader, cut = printed
    assert not cut and len(reader.pages) == 2
    one, two, (there,) = reader.outline
    assert [one.title, two.title.strip(), there.title] == ["One", "Two c", "There"]
    assert [reader.get_destination_page_number(x) for x in (one, two, there)] == [0, 1, 1]
    assert "/StructTreeRoot" in reader.trailer["/Root"]


def test_links_between_pages_lead_within_the_document(printed):
    reader, _ = printed
    notes = [note.get_object() for page in reader.pages for note in page.get("/Annots", [])]
    out = [note["/A"]["/URI"] for note in notes if "/URI" in note.get("/A", {})]
    assert out == ["https://example.org/x"]
    inside = [note for note in notes if "/Dest" in note]
    assert len(inside) == 2
    for note in inside:
        assert reader.get_destination_page_number(reader.named_destinations[note["/Dest"]]) == 1


def test_nothing_is_cut_off_and_answers_are_open(printed):
    words = printed[0].pages[0].extract_text().replace("\n", "").replace(" ", "")
    for word in ("end_of_line", "column_39", "hiddenanswer", "Setits_words."):
        assert word in words
    assert "no_words" not in words


def test_a_page_that_needs_the_network_is_refused(tmp_path, monkeypatch):
    (tmp_path / "a.html").write_text('<article class="bd-article"><img src="https://a.org/b.png">')
    monkeypatch.setattr(pdf, "contents", lambda: ["a"])
    with pytest.raises(SystemExit, match="https://a.org/b.png"):
        pdf.make(tmp_path, tmp_path / "out.pdf")
