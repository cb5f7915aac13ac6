// A classic script, not a module: it runs before the page is drawn, so the page never flashes in the other colors.
"use strict";
{
  const chosen = localStorage.getItem("es-sbert-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
