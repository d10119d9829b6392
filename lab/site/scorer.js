// Sphinx's scores, and 10 for each word of the search in a title. Sphinx counts the best word alone.
var Scorer = {
  score: ([, title, , , score]) => {
    const words = new URLSearchParams(window.location.search).get("q").toLowerCase().split(/\s+/);
    return score + 10 * words.filter((word) => title.toLowerCase().includes(word)).length;
  },
  objNameMatch: 11, objPartialMatch: 6, objPrio: {}, objPrioDefault: 0, title: 15, partialTitle: 7, term: 5, partialTerm: 2,
};
