// How Sphinx's search ranks what it finds: a section whose heading is the query comes first, then
// chapters whose title has the word, in the book's order, then sections with it.
var Scorer = {  // var: the script that reads it declares the name again
  score: ([page, title, anchor, , score]) => {
    const asked = (new URLSearchParams(location.search).get("q") ?? "").toLowerCase().trim();
    const heading = title.split(" > ").pop().toLowerCase().trim();
    if (anchor && heading === asked) return score + 1000;
    if (!heading.split(/[^\p{L}\p{N}]+/u).includes(asked)) return score;
    const chapter = /^notebooks\/(\d+)_/.exec(page);
    return score + (anchor ? 100 : chapter ? 500 - 10 * chapter[1] : 200);
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
