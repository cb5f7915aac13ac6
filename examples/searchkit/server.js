// The page, and the searches that it sends here so that browsers never reach the search engine itself.
import createApi from "@searchkit/api";
import express from "express";

const index = process.env.ELASTICSEARCH_INDEX ?? "articles";

const api = createApi({
  connection: {
    host: process.env.ELASTICSEARCH_HOST ?? "http://localhost:9200",
    apiKey: process.env.ELASTICSEARCH_API_KEY,
  },
  search_settings: {
    search_attributes: [{ field: "title", weight: 3 }, "text"],
    result_attributes: ["title", "text", "topic", "year"],
    highlight_attributes: ["title"],
    snippet_attributes: ["text:200"],
    facet_attributes: [
      { attribute: "topic", field: "topic.keyword", type: "string" },
      { attribute: "year", field: "year", type: "numeric" },
    ],
  },
});

const app = express();
app.use(express.static(new URL("public", import.meta.url).pathname));
app.use(express.static(new URL("dist", import.meta.url).pathname));
app.use(express.json());

// Which index is searched is not for the browser to say.
const hooks = { beforeSearch: async (searches) => searches.map((search) => ({ ...search, indexName: index })) };

app.post("/api/search", async (request, response) => {
  response.json(await api.handleRequest(request.body, { hooks }));
});

const server = app.listen(Number(process.env.PORT ?? 3002), "127.0.0.1", () => {
  console.log(`Listening on http://127.0.0.1:${server.address().port}`);
});
