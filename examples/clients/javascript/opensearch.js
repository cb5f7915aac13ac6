// Semantic search with OpenSearch's own client, unchanged, through es-sbert's gateway:
//   node opensearch.js
//   node opensearch.js ../../articles.jsonl       index these articles first
import { readFileSync } from "node:fs";
import { Client } from "@opensearch-project/opensearch";

const [file] = process.argv.slice(2);
const client = new Client({ node: process.env.GATEWAY ?? "http://localhost:9280" });
const index = process.env.INDEX ?? "articles";
const text = "cosmonauts";

if (file) {
  const articles = readFileSync(file, "utf8").trim().split("\n").map((line) => JSON.parse(line));
  const loaded = await client.helpers.bulk({
    datasource: articles,
    onDocument: (article) => ({ index: { _index: index, _id: article.id } }),
    refresh: true,
  });
  console.log(`${loaded.successful} articles indexed`);
}

const searches = {
  "match on semantic": { match: { semantic: text } },
  "semantic query": { semantic: { field: "embedding", query: text } },
  "neural query": { neural: { embedding: { query_text: text, k: 3 } } },
};
for (const [name, query] of Object.entries(searches)) {
  const found = await client.search({ index, body: { size: 3, query } });
  console.log(`${name}: ${found.body.hits.hits[0]?._source.title ?? "nothing"}`);
}
await client.close();
