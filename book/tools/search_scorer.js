// How Sphinx's search ranks what it finds: a section whose heading is the query comes first.
var Scorer = {  // var: the script that reads it declares the name again
  score: ([, title, anchor, , score]) => {
    const asked = new URLSearchParams(location.search).get("q") ?? "";
    const heading = title.split(" > ").pop().toLowerCase().trim();
    return anchor && heading === asked.toLowerCase().trim() ? score + 1000 : score;
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
