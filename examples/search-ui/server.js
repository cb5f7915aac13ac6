// The page, and the searches that it sends here so that browsers never reach the search engine itself.
import ElasticsearchAPIConnector from "@elastic/search-ui-elasticsearch-connector";
import express from "express";

const connector = new ElasticsearchAPIConnector({
  host: process.env.ELASTICSEARCH_HOST ?? "http://localhost:9200",
  index: process.env.ELASTICSEARCH_INDEX ?? "articles",
  apiKey: process.env.ELASTICSEARCH_API_KEY,
});

const app = express();
app.use(express.static(new URL("public", import.meta.url).pathname));
app.use(express.static(new URL("dist", import.meta.url).pathname));
app.use(express.json());

app.post("/api/search", async (request, response) => {
  const { state, queryConfig } = request.body;
  response.json(await connector.onSearch(state, queryConfig));
});

const server = app.listen(Number(process.env.PORT ?? 3001), "127.0.0.1", () => {
  console.log(`Listening on http://127.0.0.1:${server.address().port}`);
});
