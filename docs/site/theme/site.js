// "/" goes to the search field; results close on Escape or where nothing is looked for.
const field = document.getElementById("mkdocs-search-query");
const results = document.getElementById("mkdocs-search-results");
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && document.activeElement !== field) { event.preventDefault(); field.focus(); }
  if (event.key === "Escape") { field.value = ""; results.replaceChildren(); field.blur(); }
});
field.addEventListener("input", () => { if (!field.value.trim()) results.replaceChildren(); });
