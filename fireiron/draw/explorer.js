"use strict";
const tree = document.getElementById("tree");
const code = document.getElementById("code");
const buttons = [...tree.querySelectorAll("button")];
const lines = [...code.children];
const ofLine = lines.map((line) => (line.dataset.steps ? line.dataset.steps.split(" ").map(Number) : []));
let here = -1;

function show(steps) {
  const own = new Set(steps);
  const parts = new Set(steps.flatMap((step) => (buttons[step].dataset.parts || "").split(" ").filter(Boolean).map(Number)));
  lines.forEach((line, number) => {
    const made = ofLine[number];
    line.classList.toggle("own", made.some((step) => own.has(step)));
    line.classList.toggle("part", !made.some((step) => own.has(step)) && made.some((step) => parts.has(step)));
  });
  buttons.forEach((button, step) => {
    if (own.has(step)) button.setAttribute("aria-current", "true");
    else button.removeAttribute("aria-current");
    document.getElementById("step-" + step).hidden = !own.has(step);
  });
  document.getElementById("none").hidden = own.size > 0;
  const hash = steps.length ? "#step=" + steps.join(",") : "#";
  if (location.hash !== hash && location.protocol !== "about:") history.replaceState(null, "", hash);
}

function reveal(element, block) {
  element.scrollIntoView({ block, inline: "nearest" });
}

function marked() {
  const found = lines.flatMap((line, number) => (line.matches(".own, .part") ? [number] : []));
  return found.filter((number) => !found.includes(number - 1));
}

function bodyFirst(runs) {
  const kernel = lines.findIndex((line) => line.textContent.startsWith('extern "C" __global__'));
  return runs.find((number) => number > kernel) ?? runs[0];
}

function chooseStep(step, focus) {
  show([step]);
  const runs = marked();
  if (runs.length) reveal(lines[bodyFirst(runs)], "center");
  reveal(buttons[step], "nearest");
  if (focus) buttons[step].focus({ preventScroll: true });
}

function chooseLine(number) {
  if (here >= 0) lines[here].classList.remove("here");
  here = Math.max(0, Math.min(lines.length - 1, number));
  lines[here].classList.add("here");
  reveal(lines[here], "nearest");
  show(ofLine[here]);
  if (ofLine[here].length) reveal(buttons[ofLine[here][0]], "nearest");
}

function go(direction) {
  const runs = marked();
  if (!runs.length) return;
  const from = here;
  const next = direction > 0 ? runs.find((number) => number > from) ?? runs[0] : runs.findLast((number) => number < from) ?? runs.at(-1);
  if (here >= 0) lines[here].classList.remove("here");
  here = next;
  lines[here].classList.add("here");
  reveal(lines[here], "center");
}

tree.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (button) chooseStep(Number(button.dataset.step), false);
});
tree.addEventListener("keydown", (event) => {
  const step = buttons.indexOf(document.activeElement);
  const to = { ArrowDown: step + 1, ArrowUp: step - 1, Home: 0, End: buttons.length - 1 }[event.key];
  if (to === undefined || step < 0) return;
  event.preventDefault();
  if (buttons[to]) chooseStep(to, true);
});
code.addEventListener("click", (event) => {
  const line = event.target.closest("li");
  if (line && getSelection().isCollapsed) chooseLine(lines.indexOf(line));
});
code.addEventListener("keydown", (event) => {
  const to = { ArrowDown: here + 1, ArrowUp: here - 1 }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  chooseLine(to);
});
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "n") go(1);
  else if (event.key === "p") go(-1);
  else if (event.key === "Escape") show([]);
});

const asked = /^#step=([\d,]+)$/.exec(location.hash);
if (asked) chooseStep(Math.min(Number(asked[1].split(",")[0]), buttons.length - 1), false);
else {
  const kernel = lines.find((line) => line.textContent.startsWith('extern "C" __global__'));
  if (kernel) reveal(kernel, "start");
}
