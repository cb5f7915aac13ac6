// Runs before the page is drawn, so that it never flashes in the other colors.
"use strict";
{
  let chosen = null;
  // A browser may refuse storage to a file, or to a page in a frame.
  try { chosen = localStorage.getItem("es-sbert-theme"); } catch { /* The system's colors. */ }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
