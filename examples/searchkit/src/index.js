import createClient from "@searchkit/instantsearch-client";
import instantsearch from "instantsearch.js";
import { configure, hits, numericMenu, pagination, refinementList, searchBox, stats } from "instantsearch.js/es/widgets";
import "instantsearch.css/themes/satellite.css";

const search = instantsearch({
  indexName: "articles",
  searchClient: createClient({ url: "/api/search" }),
});

search.addWidgets([
  configure({ hitsPerPage: 5 }),
  searchBox({ container: "#searchbox", placeholder: "Search articles" }),
  stats({ container: "#stats" }),
  refinementList({ container: "#topics", attribute: "topic" }),
  numericMenu({
    container: "#years",
    attribute: "year",
    items: [
      { label: "Any" },
      { label: "Before 2000", end: 1999 },
      { label: "2000 to 2009", start: 2000, end: 2009 },
      { label: "2010 and later", start: 2010 },
    ],
  }),
  hits({
    container: "#hits",
    templates: {
      item: (hit, { html, components }) => html`
        <article>
          <h3>${components.Highlight({ hit, attribute: "title" })}</h3>
          <p>${components.Snippet({ hit, attribute: "text" })}</p>
          <p>${hit.topic}, ${hit.year}</p>
        </article>
      `,
    },
  }),
  pagination({ container: "#pagination" }),
]);

search.start();
