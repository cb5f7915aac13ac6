import java.io.IOException;
import java.net.URISyntaxException;
import java.nio.file.Path;
import java.util.List;
import org.apache.hc.core5.http.HttpHost;
import org.opensearch.client.opensearch.OpenSearchClient;
import org.opensearch.client.opensearch._types.FieldValue;
import org.opensearch.client.opensearch._types.Refresh;
import org.opensearch.client.opensearch._types.query_dsl.Query;
import org.opensearch.client.opensearch.core.BulkRequest;
import org.opensearch.client.opensearch.core.BulkResponse;
import org.opensearch.client.opensearch.core.search.Hit;
import org.opensearch.client.transport.OpenSearchTransport;
import org.opensearch.client.transport.httpclient5.ApacheHttpClient5TransportBuilder;

/**
 * Semantic search with OpenSearch's own client, unchanged, through es-sbert's gateway:
 *
 * <pre>
 * mvn -q compile exec:java -Dexec.mainClass=SearchOpenSearch
 * mvn -q compile exec:java -Dexec.mainClass=SearchOpenSearch -Dexec.args=../../articles.jsonl    index these articles first
 * </pre>
 */
public final class SearchOpenSearch {

    private static final String GATEWAY = System.getenv().getOrDefault("GATEWAY", "http://localhost:9280");
    private static final String INDEX = System.getenv().getOrDefault("INDEX", "articles");
    private static final String TEXT = "cosmonauts";

    public static void main(String[] arguments) throws IOException, URISyntaxException {
        try (OpenSearchTransport transport =
                ApacheHttpClient5TransportBuilder.builder(HttpHost.create(GATEWAY)).build()) {
            OpenSearchClient client = new OpenSearchClient(transport);
            if (arguments.length > 0) {
                index(client, Article.read(Path.of(arguments[0])));
            }
            search(client, "match on semantic", Query.of(q -> q
                .match(m -> m.field("semantic").query(FieldValue.of(TEXT)))));
            search(client, "neural query", Query.of(q -> q
                .neural(n -> n.field("embedding").queryText(TEXT).k(3))));
        }
    }

    private static void index(OpenSearchClient client, List<Article> articles) throws IOException {
        BulkRequest.Builder request = new BulkRequest.Builder().index(INDEX).refresh(Refresh.True);
        for (Article article : articles) {
            request.operations(o -> o.index(i -> i.id(article.id()).document(article)));
        }
        BulkResponse response = client.bulk(request.build());
        long successful = response.items().stream().filter(item -> item.error() == null).count();
        System.out.println(successful + " articles indexed");
    }

    private static void search(OpenSearchClient client, String name, Query query) throws IOException {
        List<Hit<Article>> hits =
            client.search(s -> s.index(INDEX).query(query), Article.class).hits().hits();
        System.out.println(name + ": " + (hits.isEmpty() ? "nothing" : hits.get(0).source().title()));
    }
}
