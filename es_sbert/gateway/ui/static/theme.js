// Before the page is drawn, so that it never flashes in the other colours: a classic script, not a module.
"use strict";
{
  const chosen = localStorage.getItem("es-sbert-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
