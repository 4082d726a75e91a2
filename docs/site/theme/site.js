// Search. search/index.js defines search_index: [location, title, page, text, keywords, weight] of each section (docs/site/search.py).
const words = (text) => text.toLowerCase().match(/[\p{L}\p{N}_]+/gu) || [];
const joined = (text) => words(text).join("").replaceAll("_", "");  // "ping-pong" and "pingpong" are the same

function score([, title, page, text, keywords, weight], terms, whole) {
  const inTitle = words(title), inPage = words(page), inText = words(text);
  let sum = 0;
  for (const term of terms) {
    const count = inText.filter((word) => word === term).length;
    const begins = inText.some((word) => word.startsWith(term));
    const points = (inTitle.includes(term) ? 12 : inTitle.some((word) => word.startsWith(term)) ? 7 : 0) +
      (inPage.includes(term) ? 3 : 0) + Math.min(count, 5) + (begins ? 0.5 : 0);
    if (!points && !joined(title + keywords).includes(term)) return 0;
    sum += points;
  }
  const phrase = joined(title);
  sum += phrase === whole ? 40 : whole.length > 3 && phrase.includes(whole) ? 15 : 0;
  if (keywords.split(";").some((keyword) => joined(keyword) === whole)) sum += 100;
  return sum * weight;
}

function ranked(index, query, most = 12) {
  const terms = words(query), whole = joined(query);
  if (!terms.length) return [];
  const scores = index.map((entry, position) => [score(entry, terms, whole), position]).filter(([points]) => points > 0);
  return scores.sort((left, right) => right[0] - left[0] || left[1] - right[1]).slice(0, most).map(([, position]) => index[position]);
}

function excerpt(text, query) {
  const at = words(query).map((word) => text.toLowerCase().indexOf(word)).filter((place) => place >= 0);
  const start = Math.max(0, Math.min(...at, text.length) - 40);
  return (start ? "… " : "") + text.slice(start, start + 160);
}

function shown(entry, query) {
  const article = document.createElement("article"), link = document.createElement("a"), text = document.createElement("p");
  link.href = `${base_url}/${entry[0]}`;
  link.textContent = entry[1] === entry[2] ? entry[1] : `${entry[1]} · ${entry[2]}`;
  text.textContent = excerpt(entry[3], query);
  const heading = document.createElement("h3");
  heading.append(link);
  article.append(heading, text);
  return article;
}

if (typeof module !== "undefined") {
  module.exports = { ranked };
} else {
  const field = document.getElementById("search-query"), results = document.getElementById("search-results");
  const search = () => {
    if (typeof search_index === "undefined") return;
    results.replaceChildren(...ranked(search_index, field.value).map((entry) => shown(entry, field.value)));
  };
  field.addEventListener("focus", () => {  // the index is loaded when it is needed
    const script = document.createElement("script");
    script.src = `${base_url}/search/index.js`;
    script.onload = search;
    document.head.append(script);
  }, { once: true });
  field.addEventListener("input", search);
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && document.activeElement !== field) { event.preventDefault(); field.focus(); }
    if (event.key === "Escape") { field.value = ""; results.replaceChildren(); field.blur(); }
    if (event.key === "Enter" && document.activeElement === field) results.querySelector("a")?.click();
  });
}
