package id.hapax.client;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.net.HttpURLConnection;
import java.net.URL;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** hapax testserver, which ends with this process. */
public final class TestServer implements AutoCloseable {
    /** Something was not as the test has it. */
    public static final class Failed extends RuntimeException {
        private static final long serialVersionUID = 1;

        public Failed(String why) {
            super(why);
        }
    }

    private final Process process;
    public final List<String> servers = new ArrayList<>();
    private String control;

    public TestServer(Path script) throws IOException {
        String hapax = System.getenv("HAPAX");
        process = new ProcessBuilder(hapax, "testserver", "--http", "127.0.0.1:0", "--until-eof", "--script", script.toString())
                .redirectError(ProcessBuilder.Redirect.INHERIT).start();
        BufferedReader lines = new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null && !line.equals("ready"); line = lines.readLine()) {
            String[] words = line.split(" ");
            if (words[0].equals("server")) {
                servers.add(words[1]);
            } else {
                control = words[1];
            }
        }
        if (servers.isEmpty()) {
            throw new Failed("the test server ended");
        }
    }

    /** Starts one that does nothing special. */
    public static TestServer plain(String script) throws IOException {
        Path file = Files.createTempFile("hapax", ".json");
        try {
            Files.write(file, script.getBytes(StandardCharsets.UTF_8));
            return new TestServer(file);
        } finally {
            Files.delete(file);
        }
    }

    /** Asks its control. A body that is null is none. */
    public String ask(String path, Object body) throws IOException {
        HttpURLConnection c = (HttpURLConnection) new URL(control + path).openConnection();
        c.setReadTimeout(60_000);
        if (body != null) {
            c.setDoOutput(true);
            c.getOutputStream().write(json(body).getBytes(StandardCharsets.UTF_8));
        }
        int status = c.getResponseCode();
        StringBuilder all = new StringBuilder();
        try (InputStream in = status < 400 ? c.getInputStream() : c.getErrorStream()) {
            BufferedReader lines = new BufferedReader(new InputStreamReader(in, StandardCharsets.UTF_8));
            lines.lines().forEach(line -> all.append(line).append('\n'));
        }
        if (status >= 400) {
            throw new Failed(all.toString());
        }
        return all.toString();
    }

    /** Returns the counts of all takes so far. */
    public List<Integer> takes() throws IOException {
        List<Integer> counts = new ArrayList<>();
        for (Object one : (List<?>) Json.read(ask("/requests", null))) {
            Map<?, ?> request = (Map<?, ?>) one;
            if (((String) request.get("path")).endsWith("/take")) {
                counts.add(((Double) ((Map<?, ?>) request.get("body")).get("count")).intValue());
            }
        }
        return counts;
    }

    private static String json(Object value) {
        if (value instanceof Map) {
            StringBuilder out = new StringBuilder();
            ((Map<?, ?>) value).forEach((k, v) -> out.append(out.length() > 0 ? "," : "").append(Json.quote((String) k)).append(':').append(json(v)));
            return "{" + out + "}";
        }
        if (value instanceof Double && (Double) value == Math.rint((Double) value)) {
            return String.valueOf(((Double) value).longValue());
        }
        return value instanceof String ? Json.quote((String) value) : String.valueOf(value);
    }

    @Override
    public void close() throws IOException {
        process.getOutputStream().close();
        try {
            process.waitFor();
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }
}
