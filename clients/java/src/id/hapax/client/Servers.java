package id.hapax.client;

import id.hapax.client.HapaxException.Reason;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicReference;

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
    private final HttpClient http;
    private final String token; // null: none
    private final Duration callTimeout;
    private final AtomicReference<String> store = new AtomicReference<>();
    private volatile int preferred;
    private volatile boolean closed;

    Servers(List<String> addresses, HttpClient http, String token, Duration callTimeout) {
        for (String address : addresses) {
            all.add(new Server(address));
        }
        this.http = http;
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
                URI at = URI.create(all.get(index).address + HEALTH);
                if (send(all.get(index), HttpRequest.newBuilder(at)).statusCode() == 200) {
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
        HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(server.address + NEXT))
                .header("Content-Type", "application/json")
                .POST(HttpRequest.BodyPublishers.ofString(body));
        if (token != null) {
            request.header("Authorization", "Bearer " + token);
        }
        String known = store.get();
        if (known != null) {
            request.header(STORE, known);
        }
        HttpResponse<byte[]> response = send(server, request);
        Object reply;
        try {
            reply = Json.read(new String(response.body(), StandardCharsets.UTF_8));
        } catch (IllegalArgumentException e) {
            reply = null; // no hapax server, or something in between
        }
        if (response.statusCode() != 200) {
            throw refused(server, response.statusCode(), reply);
        }
        String named = response.headers().firstValue(STORE).orElse(null);
        if (named != null && !store.compareAndSet(null, named) && !named.equals(store.get())) {
            throw unavailable(server, "has another store than the servers before; its numbers are not used", null);
        }
        return ids(server, reply, count);
    }

    /** Sends a request, and waits for all of the answer. */
    private HttpResponse<byte[]> send(Server server, HttpRequest.Builder request) {
        if (closed) {
            throw closed();
        }
        CompletableFuture<HttpResponse<byte[]>> answer =
                http.sendAsync(request.build(), HttpResponse.BodyHandlers.ofByteArray());
        try {
            // The client's own time-out ends with the head of an answer.
            return answer.get(callTimeout.toNanos(), TimeUnit.NANOSECONDS);
        } catch (ExecutionException e) {
            throw unavailable(server, "cannot be reached: " + e.getCause(), e.getCause());
        } catch (TimeoutException e) {
            answer.cancel(true);
            throw unavailable(server, "did not answer within " + callTimeout.toMillis() + " ms", null);
        } catch (InterruptedException e) {
            answer.cancel(true);
            Thread.currentThread().interrupt();
            throw closed();
        }
    }

    /** Returns the numbers of a reply, which must be as many as were asked for. */
    private long[] ids(Server server, Object reply, int count) {
        if (reply instanceof Map<?, ?> fields && fields.get("ids") instanceof List<?> texts && texts.size() == count) {
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
        if (!(reply instanceof Map<?, ?> fields) || !(fields.get("code") instanceof String kind)) {
            return unavailable(server, "answered with status " + status + "; is it a hapax server?", null);
        }
        String code = detail(fields.get("details"));
        Reason reason = switch (kind) {
            case "not_found" -> Reason.NO_SUCH_TAG;
            case "failed_precondition" -> code.equals("tag_deleted") ? Reason.NO_SUCH_TAG : Reason.REFUSED;
            case "invalid_argument", "unauthenticated", "permission_denied", "out_of_range", "unimplemented" -> Reason.REFUSED;
            default -> Reason.UNAVAILABLE;
        };
        return new HapaxException(reason, code, server.address + ": " + fields.get("message"), null);
    }

    /**
     * Returns the code of hapax.v1.ErrorDetail, which is the message's first field; empty if
     * there is none.
     */
    private static String detail(Object details) {
        if (!(details instanceof List<?> list)) {
            return "";
        }
        for (Object one : list) {
            if (one instanceof Map<?, ?> fields && "hapax.v1.ErrorDetail".equals(fields.get("type"))
                    && fields.get("value") instanceof String value) {
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
