import "@elastic/react-search-ui-views/lib/styles/styles.css";
import { createRoot } from "react-dom/client";
import { App } from "./App.jsx";

createRoot(document.getElementById("root")).render(<App />);
