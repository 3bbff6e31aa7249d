package id.hapax.client;

import id.hapax.client.HapaxException.Reason;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.net.HttpURLConnection;
import java.net.URL;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Future;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicReference;
import javax.net.ssl.HttpsURLConnection;
import javax.net.ssl.SSLContext;

/**
 * The servers that a client asks, one until it fails, and then the next.
 *
 * <p>All of them have to work on one store: two stores would issue the same numbers. So the
 * first reply that names a store settles which one it is, every request names it, and a
 * server with another one is as good as none.
 */
final class Servers {
    private static final String NEXT = "/hapax.v1.IssueService/Next";
    private static final String HEALTH = "/healthz";
    private static final String STORE = "Hapax-Store";
    private static final int MAX_ANSWER = 16 << 20; // bytes
    private static final long REST_NANOS = 1_000_000_000L; // of a server that failed, while others answer

    private static final class Server {
        final String address;
        volatile long restsUntil = System.nanoTime();

        Server(String address) {
            this.address = address;
        }

        boolean rests() {
            return System.nanoTime() - restsUntil < 0;
        }
    }

    private final List<Server> all = new ArrayList<>();
    private final SSLContext tls; // null: as the Java runtime does
    private final ExecutorService executor;
    private final String token; // null: none
    private final Duration callTimeout;
    private final AtomicReference<String> store = new AtomicReference<>();
    private volatile int preferred;
    private volatile boolean closed;

    Servers(List<String> addresses, SSLContext tls, String token, Duration callTimeout, ExecutorService executor) {
        for (String address : addresses) {
            all.add(new Server(address));
        }
        this.tls = tls;
        this.executor = executor;
        this.token = token;
        this.callTimeout = callTimeout;
    }

    static HapaxException closed() {
        return new HapaxException(Reason.CLOSED, "", "hapax: the client was closed", null);
    }

    void close() {
        closed = true;
    }

    /** Takes numbers from the first server that gives some. */
    long[] next(String tag, int count) {
        String body = "{\"tag\":" + Json.quote(tag) + ",\"count\":" + count + "}";
        HapaxException failed = null;
        for (int index : order()) {
            Server server = all.get(index);
            try {
                long[] ids = ask(server, body, count);
                preferred = index;
                return ids;
            } catch (HapaxException e) {
                if (e.reason() != Reason.UNAVAILABLE) {
                    throw e;
                }
                server.restsUntil = System.nanoTime() + REST_NANOS;
                if (failed != null) {
                    e.addSuppressed(failed);
                }
                failed = e;
            }
        }
        throw failed;
    }

    /** Returns the servers in the order to ask them: the one that answered last comes first. */
    private List<Integer> order() {
        List<Integer> order = new ArrayList<>();
        int first = preferred;
        for (boolean resting : new boolean[] {false, true}) {
            for (int i = 0; i < all.size(); i++) {
                int index = (first + i) % all.size();
                if (!order.contains(index) && (resting || !all.get(index).rests())) {
                    order.add(index);
                }
            }
        }
        return order;
    }

    /** Reports whether a server answers. */
    boolean answers() {
        for (int index : order()) {
            try {
                if (send(all.get(index), HEALTH, null).status == 200) {
                    return true;
                }
            } catch (HapaxException e) {
                if (e.reason() == Reason.CLOSED) {
                    return false;
                }
            }
        }
        return false;
    }

    private long[] ask(Server server, String body, int count) {
        Answer response = send(server, NEXT, body);
        Object reply;
        try {
            reply = Json.read(new String(response.body, StandardCharsets.UTF_8));
        } catch (IllegalArgumentException e) {
            reply = null; // no hapax server, or something in between
        }
        if (response.status != 200) {
            throw refused(server, response.status, reply);
        }
        String named = response.store;
        if (named != null && !store.compareAndSet(null, named) && !named.equals(store.get())) {
            throw unavailable(server, "has another store than the servers before; its numbers are not used", null);
        }
        return ids(server, reply, count);
    }

    /** What a server answered. */
    private static final class Answer {
        final int status;
        final String store; // null: it names none
        final byte[] body;

        Answer(int status, String store, byte[] body) {
            this.status = status;
            this.store = store;
            this.body = body;
        }
    }

    /** Sends a request, and waits for all of the answer. A body that is null is none. */
    private Answer send(Server server, String path, String body) {
        if (closed) {
            throw closed();
        }
        HttpURLConnection connection;
        Future<Answer> answer;
        try {
            connection = connect(server, path);
            answer = executor.submit(() -> exchange(connection, body));
        } catch (IOException e) {
            throw unavailable(server, "cannot be reached: " + e, e);
        } catch (RejectedExecutionException e) {
            throw closed();
        }
        try {
            // The connection's own time-outs begin anew with each byte.
            return answer.get(callTimeout.toNanos(), TimeUnit.NANOSECONDS);
        } catch (ExecutionException e) {
            throw unavailable(server, "cannot be reached: " + e.getCause(), e.getCause());
        } catch (TimeoutException e) {
            connection.disconnect();
            answer.cancel(true);
            throw unavailable(server, "did not answer within " + callTimeout.toMillis() + " ms", null);
        } catch (InterruptedException e) {
            connection.disconnect();
            answer.cancel(true);
            Thread.currentThread().interrupt();
            throw closed();
        }
    }

    private HttpURLConnection connect(Server server, String path) throws IOException {
        HttpURLConnection connection = (HttpURLConnection) new URL(server.address + path).openConnection();
        int millis = (int) Math.max(1, callTimeout.toMillis());
        connection.setConnectTimeout(millis);
        connection.setReadTimeout(millis);
        connection.setInstanceFollowRedirects(false); // the token is for these servers alone
        connection.setUseCaches(false);
        if (tls != null && connection instanceof HttpsURLConnection) {
            ((HttpsURLConnection) connection).setSSLSocketFactory(tls.getSocketFactory());
        }
        if (token != null) {
            connection.setRequestProperty("Authorization", "Bearer " + token);
        }
        String known = store.get();
        if (known != null) {
            connection.setRequestProperty(STORE, known);
        }
        return connection;
    }

    private static Answer exchange(HttpURLConnection connection, String body) throws IOException {
        if (body != null) {
            connection.setRequestProperty("Content-Type", "application/json");
            connection.setRequestMethod("POST");
            connection.setDoOutput(true);
            byte[] bytes = body.getBytes(StandardCharsets.UTF_8);
            connection.getOutputStream().write(bytes);
        }
        int status = connection.getResponseCode();
        ByteArrayOutputStream all = new ByteArrayOutputStream();
        try (InputStream in = status < 400 ? connection.getInputStream() : connection.getErrorStream()) {
            byte[] part = new byte[8192];
            for (int n = in == null ? -1 : in.read(part); n >= 0; n = in.read(part)) {
                if (all.size() + n > MAX_ANSWER) {
                    throw new IOException("the answer is too long");
                }
                all.write(part, 0, n);
            }
        }
        return new Answer(status, connection.getHeaderField(STORE), all.toByteArray());
    }

    /** Returns the numbers of a reply, which must be as many as were asked for. */
    private long[] ids(Server server, Object reply, int count) {
        Object field = reply instanceof Map ? ((Map<?, ?>) reply).get("ids") : null;
        if (field instanceof List && ((List<?>) field).size() == count) {
            List<?> texts = (List<?>) field;
            long[] ids = new long[count];
            try {
                for (int i = 0; i < count; i++) {
                    ids[i] = Long.parseLong((String) texts.get(i));
                }
                return ids;
            } catch (ClassCastException | NumberFormatException e) {
                throw unavailable(server, "answered with something else than numbers", e);
            }
        }
        throw unavailable(server, "answered with something else than " + count + " numbers", null);
    }

    private static HapaxException unavailable(Server server, String what, Throwable cause) {
        return new HapaxException(Reason.UNAVAILABLE, "", "hapax: " + server.address + " " + what, cause);
    }

    /** Returns what a server refused with. */
    private static HapaxException refused(Server server, int status, Object reply) {
        Map<?, ?> fields = reply instanceof Map ? (Map<?, ?>) reply : new HashMap<Object, Object>();
        if (!(fields.get("code") instanceof String)) {
            return unavailable(server, "answered with status " + status + "; is it a hapax server?", null);
        }
        String code = detail(fields.get("details"));
        Reason reason;
        switch ((String) fields.get("code")) {
            case "not_found":
                reason = Reason.NO_SUCH_TAG;
                break;
            case "failed_precondition":
                reason = code.equals("tag_deleted") ? Reason.NO_SUCH_TAG : Reason.REFUSED;
                break;
            case "invalid_argument":
            case "unauthenticated":
            case "permission_denied":
            case "out_of_range":
            case "unimplemented":
                reason = Reason.REFUSED;
                break;
            default:
                reason = Reason.UNAVAILABLE;
        }
        return new HapaxException(reason, code, server.address + ": " + fields.get("message"), null);
    }

    /**
     * Returns the code of hapax.v1.ErrorDetail, which is the message's first field; empty if
     * there is none.
     */
    private static String detail(Object details) {
        if (!(details instanceof List)) {
            return "";
        }
        for (Object one : (List<?>) details) {
            Map<?, ?> fields = one instanceof Map ? (Map<?, ?>) one : new HashMap<Object, Object>();
            if ("hapax.v1.ErrorDetail".equals(fields.get("type")) && fields.get("value") instanceof String) {
                String value = (String) fields.get("value");
                try {
                    byte[] message = Base64.getDecoder().decode(value);
                    if (message.length > 2 && message[0] == 0x0a && message[1] >= 0 && message.length >= 2 + message[1]) {
                        return new String(message, 2, message[1], StandardCharsets.UTF_8);
                    }
                } catch (IllegalArgumentException e) {
                    return ""; // no base64
                }
            }
        }
        return "";
    }
}
