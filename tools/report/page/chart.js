// SPDX-License-Identifier: Apache-2.0
// A picture: cells that are seen, pointed at, walked with arrow keys, and said.
const charts = [];
const chart = (id, plan) => {
  const canvas = $(id), says = $(`${id}-says`);
  let cells = [], current = -1, paint = null, height = 0, width = 0;
  const render = () => {
    const scale = Math.max(window.devicePixelRatio || 1, 1), c = canvas.getContext("2d");
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    canvas.style.height = `${height}px`;
    c.scale(scale, scale);
    paint(c);
    if (current >= 0 && cells[current] && document.activeElement === canvas) {
      const cell = cells[current];
      box(c, cell.x - 2, cell.y - 2, cell.w + 4, cell.h + 4, colour("--ground"), 4);
      box(c, cell.x - 2, cell.y - 2, cell.w + 4, cell.h + 4, colour("--focus"), 2);
    }
  };
  const draw = () => {
    width = Math.max(canvas.parentElement.clientWidth - 34, 280);
    const planned = plan(width);
    ({cells, paint, height} = planned);
    if (current >= cells.length) current = -1;
    canvas.setAttribute("aria-label", `${planned.label} Arrow keys go from cell to cell.`);
    says.textContent = planned.label;
    render();
  };
  const go = index => {
    current = Math.min(Math.max(index, 0), cells.length - 1);
    if (current >= 0) says.textContent = cells[current].text();
    render();
  };
  const vertical = step => {  // the nearest cell of the next line up or down
    const from = cells[current], middle = from.x + from.w / 2;
    let best = current, distance = Infinity;
    cells.forEach((cell, i) => {
      const lines = (cell.y - from.y) * step;
      if (lines <= 0) return;
      const away = lines * 1000 + Math.abs(cell.x + cell.w / 2 - middle);
      if (away < distance) {
        distance = away;
        best = i;
      }
    });
    go(best);
  };
  const find = event => cells.findIndex(
      cell => event.offsetX >= cell.x && event.offsetX < cell.x + cell.w && event.offsetY >= cell.y &&
          event.offsetY < cell.y + cell.h);
  canvas.addEventListener("mousemove", event => {
    const index = find(event);
    if (index >= 0) says.textContent = cells[index].text();
    canvas.style.cursor = index >= 0 && cells[index].action ? "pointer" : "default";
  });
  canvas.addEventListener("click", event => {
    const index = find(event);
    if (index < 0) return;
    go(index);
    if (cells[index].action) cells[index].action();
  });
  canvas.addEventListener("keydown", event => {
    const moves = {
      ArrowRight: () => go(current + 1),
      ArrowLeft: () => go(current - 1),
      Home: () => go(0),
      End: () => go(cells.length - 1),
      ArrowDown: () => current < 0 ? go(0) : vertical(1),
      ArrowUp: () => current < 0 ? go(0) : vertical(-1),
      Enter: () => current >= 0 && cells[current].action && cells[current].action()
    };
    if (!moves[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    moves[event.key]();
  });
  canvas.addEventListener("focus", () => {
    says.setAttribute("aria-live", "polite");
    go(current < 0 ? 0 : current);
  });
  canvas.addEventListener("blur", () => {
    says.removeAttribute("aria-live");
    render();
  });
  charts.push(draw);
};
const tables = [];
const lazyTable = (id, rows) => {
  const details = $(id), build = () => details.open && details.lastElementChild.replaceChildren(rows());
  details.addEventListener("toggle", build);
  tables.push(build);
};
