import co.elastic.clients.elasticsearch.ElasticsearchClient;
import co.elastic.clients.elasticsearch._types.Refresh;
import co.elastic.clients.elasticsearch.core.BulkRequest;
import co.elastic.clients.elasticsearch.core.BulkResponse;
import co.elastic.clients.elasticsearch.core.SearchRequest;
import co.elastic.clients.elasticsearch.core.search.Hit;
import java.io.IOException;
import java.nio.file.Path;
import java.util.List;

/**
 * Semantic search with Elastic's own client, unchanged, through es-sbert's gateway:
 *
 * <pre>
 * mvn -q compile exec:java -Dexec.mainClass=SearchElasticsearch
 * mvn -q compile exec:java -Dexec.mainClass=SearchElasticsearch -Dexec.args=../../articles.jsonl    index these articles first
 * </pre>
 */
public final class SearchElasticsearch {

    private static final String GATEWAY = System.getenv().getOrDefault("GATEWAY", "http://localhost:9280");
    private static final String INDEX = System.getenv().getOrDefault("INDEX", "articles");
    private static final String TEXT = "cosmonauts";

    public static void main(String[] arguments) throws IOException {
        try (ElasticsearchClient client = ElasticsearchClient.of(c -> c.host(GATEWAY))) {
            if (arguments.length > 0) {
                index(client, Article.read(Path.of(arguments[0])));
            }
            search(client, "match on semantic", SearchRequest.of(s -> s
                .index(INDEX)
                .query(q -> q.match(m -> m.field("semantic").query(TEXT)))));
            search(client, "semantic query", SearchRequest.of(s -> s
                .index(INDEX)
                .query(q -> q.semantic(m -> m.field("embedding").query(TEXT)))));
            search(client, "knn with query_vector_builder", SearchRequest.of(s -> s
                .index(INDEX)
                .knn(k -> k
                    .field("embedding")
                    .k(3)
                    .numCandidates(50)
                    .queryVectorBuilder(b -> b.textEmbedding(t -> t.modelId("all-MiniLM-L6-v2").modelText(TEXT))))));
        }
    }

    private static void index(ElasticsearchClient client, List<Article> articles) throws IOException {
        BulkRequest.Builder request = new BulkRequest.Builder().index(INDEX).refresh(Refresh.True);
        for (Article article : articles) {
            request.operations(o -> o.index(i -> i.id(article.id()).document(article)));
        }
        BulkResponse response = client.bulk(request.build());
        long successful = response.items().stream().filter(item -> item.error() == null).count();
        System.out.println(successful + " articles indexed");
    }

    private static void search(ElasticsearchClient client, String name, SearchRequest request) throws IOException {
        List<Hit<Article>> hits = client.search(request, Article.class).hits().hits();
        System.out.println(name + ": " + (hits.isEmpty() ? "nothing" : hits.get(0).source().title()));
    }
}
