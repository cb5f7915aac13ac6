// Semantic search with Elastic's own client, unchanged, through es-sbert's gateway:
//   node elasticsearch.js 9                            client 9 (or 8, for Elasticsearch 8)
//   node elasticsearch.js 9 ../../articles.jsonl       index these articles first
import { readFileSync } from "node:fs";

const [version, file] = process.argv.slice(2);
const { Client } = await import(version === "8" ? "@elastic/elasticsearch-8" : "@elastic/elasticsearch");

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
  "match on semantic": { query: { match: { semantic: text } } },
  "semantic query": { query: { semantic: { field: "embedding", query: text } } },
  "knn with query_vector_builder": {
    knn: {
      field: "embedding",
      k: 3,
      num_candidates: 50,
      query_vector_builder: { text_embedding: { model_id: "all-MiniLM-L6-v2", model_text: text } },
    },
  },
};
for (const [name, search] of Object.entries(searches)) {
  const found = await client.search({ index, size: 3, ...search });
  console.log(`${name}: ${found.hits.hits[0]?._source.title ?? "nothing"}`);
}
await client.close();
