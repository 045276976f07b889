// The audit's claims: the reader picks paper, verdict and order; the page's table follows.

var AUDIT_VERDICTS = ["holds", "holds in part", "contradicted", "cannot be told"];
var AUDIT_STYLE = {"holds": "green", "holds in part": "blue", "contradicted": "red",
  "cannot be told": "amber"};
var AUDIT_PAPERS = {"2606.31859": "Review Residuals", "2606.18524": "Looped scaling",
  "2410.17897": "ResFormer", "2603.15031": "Attention Residuals"};

// Rows that a choice leaves, in its order; v: paper, verdict on the main parts, order.
function auditRows(data, v) {
  var kept = data.filter(function (row) {
    return (v.paper === "all" || v.paper === row.paper) &&
      (v.verdict === "all" || v.verdict === row.main_verdict);
  });
  if (v.order === "paper") return kept;
  return AUDIT_VERDICTS.reduce(function (list, verdict) {
    return list.concat(kept.filter(function (row) { return row.main_verdict === verdict; }));
  }, []);
}

function auditShown(data, v) {
  return auditRows(data, v).map(function (row) { return row.id; });
}

function auditSentence(data, v) {
  var rows = auditRows(data, v), head = rows.length + " of " + data.length + " claims, " +
    (v.paper === "all" ? "all four papers" : AUDIT_PAPERS[v.paper]) + ": ";
  if (!rows.length) return head + "none has the verdict “" + v.verdict + "”.";
  return head + AUDIT_VERDICTS.map(function (verdict) {
    var n = rows.filter(function (row) { return row.main_verdict === verdict; }).length;
    return n ? n + " “" + verdict + "”" : "";
  }).filter(Boolean).join(", ") + ".";
}

// The full table is another output of the notebook; where it is on the page, it follows.
function auditTable(ids) {
  document.querySelectorAll(".rr-audit tbody").forEach(function (body) {
    var rows = {};
    body.querySelectorAll("tr[data-claim]").forEach(function (row) {
      rows[row.dataset.claim] = row;
      row.hidden = ids.indexOf(row.dataset.claim) < 0;
    });
    ids.forEach(function (id) { if (rows[id]) body.appendChild(rows[id]); });
  });
}

function drawClaims(svg, v, width, data) {
  var rows = auditRows(data, v), wide = width >= 520;
  svg.setAttribute("viewBox", "0 0 " + width + " " + (24 * Math.max(1, rows.length) + 4));
  rows.forEach(function (row, i) {
    var y = 18 + 24 * i;
    add(svg, "path", {d: "M0 " + (y + 7) + "H" + width, "class": "grid"});
    add(svg, "text", {x: 0, y: y}, row.short);
    if (wide) add(svg, "text", {x: 0.48 * width, y: y, "class": "soft"}, AUDIT_PAPERS[row.paper]);
    add(svg, "text", {x: width, y: y, "text-anchor": "end",
      "class": "is-" + AUDIT_STYLE[row.main_verdict] + " b"}, row.main_verdict);
  });
  auditTable(auditShown(data, v));
  return auditSentence(data, v);
}

mount("claim-map", drawClaims);
// The table may stand below the script: bring it in line once the page is read.
document.addEventListener("DOMContentLoaded", function () {
  document.querySelectorAll('figure[data-explorable="claim-map"] form').forEach(function (form) {
    form.dispatchEvent(new Event("input"));
  });
});
