package id.hapax.client;

import java.io.IOException;
import java.io.InputStream;
import java.io.UnsupportedEncodingException;
import java.net.URI;
import java.net.URISyntaxException;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.TimeUnit;
import java.util.logging.Logger;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

/**
 * Issues numbers from memory, which it takes from hapax servers in stretches.
 *
 * <pre>{@code
 * try (HapaxClient client = HapaxClient.builder("http://10.0.0.9:8080", "http://10.0.0.10:8080").build()) {
 *     long order = client.tag("orders").next();
 *     Result user = client.get("users"); // as Leaf's IDGen does it
 * }
 * }</pre>
 *
 * <p>For each tag it keeps a stretch to issue from, and fetches the next one when half of it is
 * used, so that callers wait for a server only if it takes longer than half a stretch lasts.
 * It asks one server until that fails, and then the next. No number comes twice: the servers
 * issue each once, to one client, which hands it to one caller. {@link #close} hands back what is
 * left; what a lost answer held is a gap.
 *
 * <p>Numbers of one client are in the order of the servers' stretches; those of several clients
 * are not in the order of the calls.
 *
 * <p>A client is safe for use by any number of threads. One is enough for a program.
 */
public class HapaxClient implements IDGen, AutoCloseable {
    /** The most numbers that one call takes. */
    public static final int MAX_COUNT = 1_000_000;

    static final Logger LOG = Logger.getLogger("id.hapax.client");
    private static final Duration LONGEST = Duration.ofHours(1);
    private static final long HAND_BACK = 1_000_000_000L; // nanoseconds that an answer to a hand-back is waited for
    private static final int MAX_TAGS = 10_000;
    private static final int MAX_TAG_BYTES = 128;

    final int minStep;
    final int maxStep;
    final boolean ahead;
    final long timeout;
    final ExecutorService executor;
    final ScheduledThreadPoolExecutor timer;
    final Servers servers;
    final ConcurrentHashMap<String, Line> lines = new ConcurrentHashMap<>();
    private final CountDownLatch closed = new CountDownLatch(1);

    HapaxClient(Builder b) {
        minStep = b.minStep;
        maxStep = b.maxStep;
        ahead = b.ahead;
        timeout = b.timeout.toNanos();
        ThreadFactory threads = task -> {
            Thread thread = new Thread(task, "hapax");
            thread.setDaemon(true);
            return thread;
        };
        executor = Executors.newCachedThreadPool(threads);
        timer = new ScheduledThreadPoolExecutor(1, threads);
        timer.setRemoveOnCancelPolicy(true);
        servers = newServers(b);
    }

    Servers newServers(Builder b) {
        return new Servers(b, executor);
    }

    Line newLine(String tag) {
        return new Line(this, path(tag));
    }

    /**
     * Begins to make a client.
     *
     * @param addresses of the servers, such as {@code http://10.0.0.9:8080}, which all work on
     *     one store
     * @return what makes it
     * @throws IllegalArgumentException for none, or one that is no address
     */
    public static Builder builder(String... addresses) {
        return new Builder(addresses);
    }

    /**
     * Returns the numbers of a tag, which its first use creates unless the servers forbid that.
     *
     * @param name of the tag, up to 128 bytes in UTF-8
     * @return its numbers
     * @throws HapaxException for a name that no tag can have
     */
    public Tag tag(String name) {
        int bytes = StandardCharsets.UTF_8.newEncoder().canEncode(name) ? name.getBytes(StandardCharsets.UTF_8).length : 0;
        if (bytes < 1 || bytes > MAX_TAG_BYTES) {
            throw HapaxException.refused("invalid_tag", "invalid tag of " + bytes + " bytes in UTF-8: want 1 to " + MAX_TAG_BYTES);
        }
        return new Tag(this, name);
    }

    /**
     * Issues a number, as {@link Tag#next}.
     *
     * @param tag whose number
     * @return the number, which nobody else gets
     * @throws HapaxException if none came in time, or none will
     */
    public long next(String tag) {
        return tag(tag).next();
    }

    /**
     * Issues several numbers, as {@link Tag#take(int)}.
     *
     * @param tag whose numbers
     * @param count how many, 1 to {@link #MAX_COUNT}
     * @return the numbers, which nobody else gets
     * @throws HapaxException as {@link #next(String)}
     */
    public long[] next(String tag, int count) {
        return tag(tag).take(count);
    }

    /**
     * Issues a number as {@link #next} does, and never throws.
     *
     * @param key the tag
     * @return the number, or one of the codes of {@link Result}
     */
    @Override
    public Result get(String key) {
        try {
            return new Result(next(key), Status.SUCCESS);
        } catch (HapaxException e) {
            return new Result(Result.CODES[e.reason().ordinal()], Status.EXCEPTION);
        } catch (NullPointerException e) { // no key
            return new Result(Result.NO_SUCH_KEY, Status.EXCEPTION);
        }
    }

    /** {@inheritDoc} Nothing else has to be done before the first number. */
    @Override
    public boolean init() {
        return servers.answers();
    }

    /**
     * Hands back what is in hand; the next call begins with nothing. Call it before the process is
     * copied or frozen, such as by a checkpoint of CRaC: two copies would repeat the numbers.
     */
    public void handBack() {
        long until = System.nanoTime() + HAND_BACK;
        lines.forEach((tag, line) -> {
            lines.remove(tag, line);
            line.handBack(until);
        });
    }

    /** Ends the client, and hands back what is in hand. Later calls fail with the code closed. */
    @Override
    public void close() {
        closed.countDown();
        handBack();
        timer.shutdownNow();
        executor.shutdownNow();
    }

    Line line(String tag) {
        if (closed.getCount() == 0) {
            throw HapaxException.closed();
        }
        Line line = lines.get(tag);
        if (line == null && lines.size() >= MAX_TAGS) {
            throw HapaxException.refused("limit_exceeded", "this client has " + MAX_TAGS + " tags already; make another client for more");
        }
        return line != null ? line : lines.computeIfAbsent(tag, this::newLine);
    }

    Line.Want want(int count, long nanos) {
        if (count < 1 || count > MAX_COUNT) {
            throw HapaxException.refused("invalid_argument", "invalid count " + count + ": want 1 to " + MAX_COUNT);
        }
        return new Line.Want(count, System.nanoTime() + nanos);
    }

    void pause(long nanos) {
        try {
            if (closed.await(nanos, TimeUnit.NANOSECONDS)) {
                throw HapaxException.closed();
            }
        } catch (InterruptedException e) {
            throw HapaxException.interrupted(executor.isShutdown());
        }
    }

    static String path(String tag) {
        try {
            return "/v1/tags/" + (tag.matches("[.]+") ? tag.replace(".", "%2E") : URLEncoder.encode(tag, "UTF-8").replace("+", "%20"));
        } catch (UnsupportedEncodingException e) {
            throw new IllegalStateException(e); // every Java has it
        }
    }

    static Duration check(String name, Duration d) {
        if (d.isNegative() || d.isZero() || d.compareTo(LONGEST) > 0) {
            throw new IllegalArgumentException("invalid " + name + " " + d + ": want more than 0, up to " + LONGEST);
        }
        return d;
    }

    /** Makes a client. Every setting has a default. */
    public static final class Builder {
        final List<String> addresses = new ArrayList<>();
        String token;
        SSLContext tls;
        int minStep = 10;
        int maxStep = 100_000;
        boolean ahead = true;
        Duration timeout = Duration.ofSeconds(5);
        Duration callTimeout = Duration.ofSeconds(3);

        private Builder(String... given) {
            for (String address : given) {
                addresses.add(check(address));
            }
            if (addresses.isEmpty()) {
                throw new IllegalArgumentException("no address: want at least one, such as http://127.0.0.1:8080");
            }
        }

        private static String check(String address) {
            String want = ": want a scheme, a host and a port, such as http://127.0.0.1:8080";
            try {
                URI uri = new URI(address);
                if (uri.getRawUserInfo() != null) {
                    throw new IllegalArgumentException("invalid address (not shown, it has a user)" + want);
                }
                boolean web = "http".equals(uri.getScheme()) || "https".equals(uri.getScheme());
                if (!web || uri.getHost() == null || uri.getRawQuery() != null || uri.getRawFragment() != null) {
                    throw new IllegalArgumentException("invalid address \"" + address + "\"" + want);
                }
                return address.replaceAll("/+$", "");
            } catch (URISyntaxException e) {
                throw new IllegalArgumentException("invalid address (not shown)" + want);
            }
        }

        /**
         * Sets the token that the servers want. Default: none.
         *
         * @param token as {@code hapax token new} printed it
         * @return this
         * @throws IllegalArgumentException for a text that no header can hold
         */
        public Builder token(String token) {
            if (token.isEmpty() || !token.chars().allMatch(c -> c > ' ' && c <= '~')) {
                throw new IllegalArgumentException("invalid token (not shown): want one as hapax token new prints it");
            }
            this.token = token;
            return this;
        }

        /**
         * Sets whose certificates the servers may have. Default: the authorities that the
         * Java runtime trusts.
         *
         * @param file with certificates in PEM form
         * @return this
         * @throws IOException if the file cannot be read
         * @throws GeneralSecurityException if there is something else in it
         */
        public Builder ca(Path file) throws IOException, GeneralSecurityException {
            KeyStore trusted = KeyStore.getInstance(KeyStore.getDefaultType());
            trusted.load(null, null);
            try (InputStream in = Files.newInputStream(file)) {
                for (Certificate c : CertificateFactory.getInstance("X.509").generateCertificates(in)) {
                    trusted.setCertificateEntry("ca" + trusted.size(), c);
                }
            }
            if (trusted.size() == 0) {
                throw new GeneralSecurityException(file + " has no certificate in PEM form");
            }
            TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
            trust.init(trusted);
            tls = SSLContext.getInstance("TLS");
            tls.init(null, trust.getTrustManagers(), null);
            return this;
        }

        /**
         * Sets how to speak TLS, for a certificate of the client's own. Default: as the Java
         * runtime does. It stands in for {@link #ca}.
         *
         * @param tls what connections are made with
         * @return this
         */
        public Builder sslContext(SSLContext tls) {
            this.tls = tls;
            return this;
        }

        /**
         * Sets how many numbers are fetched at once, at least and at most: within these it follows
         * ten seconds of use. Default 10 and 100,000.
         *
         * @param min 1 to {@link #MAX_COUNT}
         * @param max min to {@link #MAX_COUNT}; the same as min fixes it
         * @return this
         * @throws IllegalArgumentException for other numbers
         */
        public Builder step(int min, int max) {
            if (min < 1 || max < min || max > MAX_COUNT) {
                throw new IllegalArgumentException("invalid step " + min + " to " + max + ": want 1 to " + MAX_COUNT + ", the first no more than the second");
            }
            minStep = min;
            maxStep = max;
            return this;
        }

        /**
         * Fixes how many numbers are fetched at once: the same as {@link #step} with it twice.
         *
         * @param numbers 1 to {@link #MAX_COUNT}
         * @return this
         * @throws IllegalArgumentException for another number
         */
        public Builder batch(int numbers) {
            return step(numbers, numbers);
        }

        /**
         * Sets whether the next numbers are fetched in the background when half of those in hand
         * are used. Default true. Without, the process may be frozen between calls.
         *
         * @param whether it does
         * @return this
         */
        public Builder ahead(boolean whether) {
            ahead = whether;
            return this;
        }

        /**
         * Sets how long a call waits for a number. Default 5 s.
         *
         * @param longest more than 0, up to an hour
         * @return this
         * @throws IllegalArgumentException for another time
         */
        public Builder timeout(Duration longest) {
            timeout = HapaxClient.check("timeout", longest);
            return this;
        }

        /**
         * Sets how long one server may take before the next is asked. Default 3 s: a server
         * that cannot issue says so after its max_wait, 2 s.
         *
         * @param longest more than 0, up to an hour
         * @return this
         * @throws IllegalArgumentException for another time
         */
        public Builder callTimeout(Duration longest) {
            callTimeout = HapaxClient.check("callTimeout", longest);
            return this;
        }

        /**
         * Makes the client. It connects at its first use.
         *
         * @return the client, which has to be closed
         */
        public HapaxClient build() {
            return new HapaxClient(this);
        }
    }
}
