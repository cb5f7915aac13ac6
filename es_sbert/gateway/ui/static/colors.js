// The switch between light and dark; theme.js applies the choice before the page is drawn.

import { byId } from "./dom.js";

byId("theme").value = document.documentElement.dataset.theme ?? "system";
byId("theme").addEventListener("change", ({ target: { value } }) => {
  if (value === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = value;
  localStorage.setItem("es-sbert-theme", value);
});
