// Elements, and updates of the document in place.

const byId = (id) => document.getElementById(id);

const grow = (element, attributes, children) => {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
};

/** Creates an element. Absent attributes and children are left out; strings are text, never markup. */
const h = (tag, attributes, ...children) => grow(document.createElement(tag), attributes, children);

/** Creates an SVG element. */
const s = (tag, attributes, ...children) =>
  grow(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

const keyOf = (node) => (node.nodeType === Node.ELEMENT_NODE ? node.getAttribute("data-key") : null);

const alike = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName && keyOf(a) === keyOf(b);

/** Updates `node` to match `wanted`. Equal parts stay, and with them focus, selection and opened details. */
const morph = (node, wanted) => {
  if (!alike(node, wanted)) {
    node.replaceWith(wanted);
    return;
  }
  if (node.nodeType !== Node.ELEMENT_NODE) {
    if (node.data !== wanted.data) node.data = wanted.data;
    return;
  }
  for (const { name } of [...node.attributes]) {
    if (!wanted.hasAttribute(name) && name !== "open") node.removeAttribute(name);
  }
  for (const { name, value } of wanted.attributes) {
    if (node.getAttribute(name) !== value) node.setAttribute(name, value);
  }
  morphChildren(node, [...wanted.childNodes]);
};

const morphChildren = (parent, wanted) => {
  const keyed = new Map();
  for (const child of parent.childNodes) {
    if (keyOf(child) !== null) keyed.set(keyOf(child), child);
  }
  let at = parent.firstChild;
  for (const child of wanted) {
    const key = keyOf(child);
    const same = key === null ? (at && keyOf(at) === null ? at : null) : keyed.get(key);
    if (!same) {
      parent.insertBefore(child, at);
      continue;
    }
    if (same === at) at = at.nextSibling;
    else parent.insertBefore(same, at);
    morph(same, child);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
};

/** Replaces the content of an element. */
const show = (id, ...nodes) => {
  const fragment = document.createDocumentFragment();
  grow(fragment, null, nodes);
  morphChildren(byId(id), [...fragment.childNodes]);
};

/** Announces a change to screen readers: states, not numbers. */
const announce = (text) => {
  const line = byId("announce");
  if (text) line.textContent = text;
};

/** Creates a table that becomes a list of "cards" on narrow screens; roles keep it a table for screen readers. */
const table = (caption, heads, rows, look = "cards") =>
  h("table", { role: "table", class: look },
    h("caption", { class: "unseen" }, caption),
    h("thead", { role: "rowgroup" },
      h("tr", { role: "row" }, heads.map((head) => h("th", { role: "columnheader", scope: "col" }, head)))),
    h("tbody", { role: "rowgroup" },
      rows.map(({ key, head, cells, below }) => [
        h("tr", { role: "row", "data-key": key },
          h("th", { role: "rowheader", scope: "row" }, head),
          cells.map((cell, i) => h("td", { role: "cell", "data-label": heads[i + 1] }, h("div", {}, cell)))),
        below && h("tr", { role: "row", "data-key": `${key} below`, class: "below" },
          h("td", { role: "cell", colspan: heads.length }, below)),
      ])));
