import com.fasterxml.jackson.annotation.JsonIgnoreProperties;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/** A document; what else the index holds of it (its vector) is ignored. */
@JsonIgnoreProperties(ignoreUnknown = true)
record Article(String id, String title, String text, String topic, int year) {

    /** The articles of a JSONL file. */
    static List<Article> read(Path file) throws IOException {
        ObjectMapper mapper = new ObjectMapper();
        List<Article> articles = new ArrayList<>();
        for (String line : Files.readAllLines(file)) {
            articles.add(mapper.readValue(line, Article.class));
        }
        return articles;
    }
}
