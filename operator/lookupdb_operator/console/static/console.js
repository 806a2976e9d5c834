// Live regions and copy buttons. Every page works without this file.
"use strict";

const SECONDS = 3;

function prepareCopies(root) {
  for (const button of root.querySelectorAll("button.copy")) {
    button.hidden = false;
  }
}

// Copy without the clipboard API too: browsers offer it only to secure pages.
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    area.className = "unseen";
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button.copy");
  if (!button) {
    return;
  }
  await copy(button.dataset.copy);
  button.focus();
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
});

// The page is fetched again, and regions that differ are replaced. Its text is parsed, never run.
function replace(region, fresh) {
  const held = document.activeElement;
  const selection = document.getSelection();
  const isSelected = selection.toString() !== "" && region.contains(selection.anchorNode);
  if (isSelected || region.outerHTML === fresh.outerHTML) {
    return;
  }
  const focused = region.contains(held) ? [...region.querySelectorAll("a, button, summary, [tabindex]")].indexOf(held) : -1;
  const open = [...region.querySelectorAll("details[open]")].map((one) => one.id);
  const scrolled = [...region.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
  region.replaceChildren(...fresh.childNodes);
  prepareCopies(region);
  for (const id of open) {
    document.getElementById(id)?.setAttribute("open", "");
  }
  region.querySelectorAll(".scroll").forEach((one, index) => { one.scrollLeft = scrolled[index] ?? 0; });
  if (focused >= 0) {
    region.querySelectorAll("a, button, summary, [tabindex]")[focused]?.focus({ preventScroll: true });
  }
}

async function refresh() {
  if (document.hidden) {
    return;
  }
  const answer = await fetch(location.href, { credentials: "same-origin", redirect: "error" });
  if (!answer.ok) {
    throw new Error(String(answer.status));
  }
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const region of document.querySelectorAll("[data-live]")) {
    const found = fresh.getElementById(region.id);
    if (found) {
      replace(region, found);
    }
  }
  document.querySelector("footer time")?.replaceWith(fresh.querySelector("footer time"));
}

async function follow() {
  let failures = 0;
  for (;;) {
    await new Promise((resolve) => { setTimeout(resolve, 1000 * SECONDS * Math.min(1 + failures, 10)); });
    try {
      await refresh();
      failures = 0;
    } catch {
      failures += 1;
    }
    document.body.classList.toggle("stale", failures > 1);
  }
}

prepareCopies(document);
if (document.querySelector("[data-live]")) {
  follow();
}
