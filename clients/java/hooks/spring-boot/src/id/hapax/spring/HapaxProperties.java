package id.hapax.spring;

import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import org.springframework.boot.context.properties.ConfigurationProperties;
import org.springframework.boot.context.properties.bind.DefaultValue;

/**
 * The settings of the client.
 *
 * @param servers addresses of servers that share one store
 * @param token with the scopes issue and lease, or issue alone; none by default
 * @param ca a file with the certificates that sign the servers'
 * @param minStep the least numbers fetched at once
 * @param maxStep the most numbers fetched at once
 * @param ahead whether the next numbers are fetched in the background
 * @param timeout how long a call waits for a number
 * @param callTimeout how long one server may take before the next is asked
 */
@ConfigurationProperties("hapax")
public record HapaxProperties(
        @DefaultValue("http://127.0.0.1:8080") List<String> servers,
        String token,
        Path ca,
        @DefaultValue("10") int minStep,
        @DefaultValue("100000") int maxStep,
        @DefaultValue("true") boolean ahead,
        @DefaultValue("5s") Duration timeout,
        @DefaultValue("3s") Duration callTimeout) {

    /** Returns the settings without the token. */
    @Override
    public String toString() {
        return "HapaxProperties[servers=" + servers + "]";
    }
}
