// Sorts a table by the column whose head is pressed, and opens all tables for the printer.
for (const table of document.querySelectorAll("table")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, at) => head.addEventListener("click", () => {
    const figures = head.classList.contains("n");
    const was = head.getAttribute("aria-sort");
    const down = was ? was === "ascending" : figures;
    heads.forEach((one) => one.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const value = (row) => {
      const cell = row.cells[at];
      if (!figures) return cell.textContent;
      return "v" in cell.dataset ? Number(cell.dataset.v) : NaN;
    };
    const compare = (a, b) => {
      const x = value(a), y = value(b);
      if (x === y) return 0;
      // What is missing comes last, whichever way.
      if (figures && (isNaN(x) || isNaN(y))) return isNaN(x) - isNaN(y);
      return (x < y ? -1 : 1) * (down ? -1 : 1);
    };
    const body = table.tBodies[0];
    body.append(...[...body.rows].sort(compare));
  }));
}
addEventListener("beforeprint", () => {
  for (const one of document.querySelectorAll("details")) one.open = true;
});
