"use strict";
const top_ = document.currentScript.dataset.top;
const input = document.getElementById("q");
const found = document.getElementById("found");

function look(query) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  found.replaceChildren();
  found.hidden = words.length === 0;
  if (found.hidden) return;
  const hits = sections
    .map((s) => {
      const title = (s.page + " " + s.title).toLowerCase(), text = s.text.toLowerCase();
      let score = 0;
      for (const w of words) {
        if (title.includes(w)) score += 10;
        else if (text.includes(w)) score += 1;
        else return { s, score: 0 };
      }
      return { s, score };
    })
    .filter((h) => h.score > 0)
    .sort((a, b) => b.score - a.score)
    .slice(0, 20);
  const head = document.createElement("h2");
  head.textContent = hits.length ? "Found" : "Nothing found";
  const list = document.createElement("ul");
  for (const { s } of hits) {
    const item = document.createElement("li"), link = document.createElement("a");
    link.href = top_ + s.url;
    link.textContent = s.page === s.title ? s.title : s.page + ": " + s.title;
    item.append(link);
    list.append(item);
  }
  found.append(head, list);
}

input.addEventListener("input", () => look(input.value));
const asked = new URLSearchParams(location.search).get("q");
if (asked) {
  input.value = asked;
  look(asked);
}
