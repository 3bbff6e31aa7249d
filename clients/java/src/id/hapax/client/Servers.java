package id.hapax.client;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.net.HttpURLConnection;
import java.net.URL;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
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
 * first answer with numbers names the store, every later request does, too, and a server with
 * another one is as good as none.
 */
class Servers {
    private static final String STORE = "Hapax-Store";
    private static final int MAX_ANSWER = 64 << 20; // bytes
    private static final long REST = 1_000_000_000L; // nanoseconds for which a server that failed is asked last
    private static final long LONGEST = 3600_000_000_000L; // of Retry-After
    private static final String REFUSED = " 400 401 403 404 405 409 410 413 415 501 ";

    /** Reads an answer to what was asked at a time, or throws IllegalArgumentException. */
    interface Reader<T> {
        T read(Map<?, ?> answer, long sent, long sentWall);
    }

    /** What a server answered. */
    static final class Answer {
        final int status;
        final String store; // null: it names none
        final String retryAfter; // null: it has none
        final byte[] body;

        Answer(int status, String store, String retryAfter, byte[] body) {
            this.status = status;
            this.store = store;
            this.retryAfter = retryAfter;
            this.body = body;
        }
    }

    private final List<String> all;
    private final long[] restsUntil; // of System.nanoTime; a lost update costs one request
    private final SSLContext tls; // null: as the Java runtime does
    private final ExecutorService executor;
    private final String token; // null: none
    private final long callTimeout;
    private final AtomicReference<String> store = new AtomicReference<>();
    volatile int preferred;

    Servers(HapaxClient.Builder b, ExecutorService executor) {
        all = new ArrayList<>(b.addresses);
        restsUntil = all.stream().mapToLong(address -> System.nanoTime()).toArray();
        tls = b.tls;
        token = b.token;
        callTimeout = b.callTimeout.toNanos();
        this.executor = executor;
    }

    /** Asks each server once, until one gives an answer that can be read. */
    <T> T ask(String path, String body, long until, Reader<T> reader) {
        HapaxException failed = null;
        long soonest = LONGEST;
        for (int index : order()) {
            long sent = System.nanoTime();
            if (until - sent <= 0) {
                break;
            }
            try {
                T result = ask(all.get(index), path, body, Math.min(until - sent, callTimeout), reader, sent);
                preferred = index;
                return result;
            } catch (IllegalArgumentException e) {
                failed = HapaxException.unavailable(all.get(index) + " answered with something else than numbers: " + e.getMessage(), e);
                soonest = 0;
            } catch (HapaxException e) {
                if (e.last || e.status == 429 || e.status == 507) {
                    throw e;
                }
                failed = failed == null || e.status > 0 ? e : failed;
                soonest = Math.min(soonest, e.retryAfter);
            }
            preferred = (index + 1) % all.size(); // else the time may never reach those after some that hang
            restsUntil[index] = System.nanoTime() + Math.max(REST, failed.retryAfter);
            HapaxClient.LOG.warning(failed.getMessage());
        }
        throw failed == null ? HapaxException.unavailable("no server answered in time", null) : new HapaxException(failed.code(), failed.getMessage().substring(7), false, failed.status, soonest, failed);
    }

    /** Returns the servers in the order to ask them: the one that answered last comes first. */
    private List<Integer> order() {
        List<Integer> order = new ArrayList<>();
        for (int i = 0; i < all.size(); i++) {
            order.add(i);
        }
        Collections.rotate(order, -preferred);
        long now = System.nanoTime();
        order.sort((a, b) -> Boolean.compare(restsUntil[a] - now > 0, restsUntil[b] - now > 0));
        return order;
    }

    /** Reports whether a server answers. */
    boolean answers() {
        for (int index : order()) {
            try {
                if (send(all.get(index) + "/healthz", null, callTimeout).status == 200) {
                    return true;
                }
            } catch (HapaxException e) {
                HapaxClient.LOG.warning(e.getMessage());
            }
        }
        return false;
    }

    private <T> T ask(String address, String path, String body, long timeout, Reader<T> reader, long sent) {
        long sentWall = System.currentTimeMillis();
        Answer answer = send(address + path, body, timeout);
        Object read = null;
        try {
            read = Json.read(new String(answer.body, StandardCharsets.UTF_8));
        } catch (IllegalArgumentException e) {
            // It is no hapax server, or something is in between: so its status, or that it has no numbers, is told.
        }
        Map<?, ?> fields = read instanceof Map ? (Map<?, ?>) read : Collections.emptyMap();
        if (answer.status != 200) {
            throw refused(address, answer, fields);
        }
        T result = reader.read(fields, sent, sentWall);
        store.compareAndSet(null, answer.store); // the first answer with numbers says which store it is
        if (answer.store == null || !answer.store.equals(store.get())) {
            throw new HapaxException("store_replaced", address + " has another store than the servers before; its numbers are not used", false, 503, 0, null);
        }
        return result;
    }

    /** Returns what a server refused with. */
    private static HapaxException refused(String address, Answer answer, Map<?, ?> fields) {
        Object code = answer.status == 401 ? "unauthenticated" : fields.get("code"); // of 401, HttpURLConnection hides the rest
        if (!(code instanceof String)) {
            return HapaxException.unavailable(address + " answered with status " + answer.status + "; is it a hapax server?", null);
        }
        long nanos = String.valueOf(answer.retryAfter).matches("[0-9]{1,9}") ? Math.min(LONGEST, Long.parseLong(answer.retryAfter) * 1_000_000_000L) : 0;
        return new HapaxException((String) code, address + ": " + (fields.containsKey("detail") ? fields.get("detail") : code), REFUSED.contains(" " + answer.status + " "), answer.status, nanos, null);
    }

    /** Sends a request, and waits for all of the answer. A body that is null is none. */
    Answer send(String url, String body, long timeout) {
        String server = url.replaceAll("/v1/tags/.*", "");
        Future<Answer> answer;
        HttpURLConnection connection;
        try {
            connection = (HttpURLConnection) new URL(url).openConnection();
            answer = executor.submit(() -> exchange(connection, body, (int) Math.max(1, timeout / 1_000_000)));
        } catch (IOException e) {
            throw HapaxException.unavailable(server + " cannot be reached: " + e, e);
        } catch (RejectedExecutionException e) {
            throw HapaxException.closed();
        }
        try {
            // The connection's own time-outs begin anew with each byte.
            return answer.get(timeout, TimeUnit.NANOSECONDS);
        } catch (ExecutionException e) {
            throw HapaxException.unavailable(server + " did not answer: " + e.getCause(), e.getCause());
        } catch (TimeoutException e) {
            throw HapaxException.unavailable(server + " did not answer within " + timeout / 1_000_000 + " ms", null);
        } catch (InterruptedException e) {
            throw HapaxException.interrupted(executor.isShutdown());
        } finally {
            if (!answer.isDone() && !executor.isShutdown()) {
                executor.execute(connection::disconnect); // elsewhere: it waits for whoever reads
            }
        }
    }

    private Answer exchange(HttpURLConnection connection, String body, int millis) throws IOException {
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
        if (store.get() != null) {
            connection.setRequestProperty(STORE, store.get());
        }
        if (body != null) {
            byte[] bytes = body.getBytes(StandardCharsets.UTF_8);
            connection.setRequestProperty("Content-Type", "application/json");
            connection.setRequestMethod("POST");
            connection.setDoOutput(true);
            connection.setFixedLengthStreamingMode(bytes.length); // otherwise it sends what failed again, by itself
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
        return new Answer(status, connection.getHeaderField(STORE), connection.getHeaderField("Retry-After"), all.toByteArray());
    }
}
