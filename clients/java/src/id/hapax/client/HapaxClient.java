package id.hapax.client;

import id.hapax.client.HapaxException.Reason;
import java.io.IOException;
import java.io.InputStream;
import java.net.URI;
import java.net.URISyntaxException;
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
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

/**
 * Issues numbers that hapax servers give it in batches.
 *
 * <pre>{@code
 * try (HapaxClient ids = HapaxClient.builder("http://10.0.0.9:8080", "http://10.0.0.10:8080").build()) {
 *     long order = ids.next("orders");
 *     Result user = ids.get("users"); // as Leaf's IDGen does it
 * }
 * }</pre>
 *
 * <p>For each tag it keeps a batch to issue from, and fetches the next one when half of it is
 * used, so that callers wait for a server only if it takes longer than half a batch lasts.
 * It asks one server until that fails, and then the next. No number comes twice: the servers
 * issue each once, to one client, which hands it to one caller. What a client has in hand when
 * it ends is a gap, and so is what a lost reply held.
 *
 * <p>Numbers of one client are in the order of the servers' batches; those of several clients
 * are not in the order of the calls.
 *
 * <p>A client is safe for use by any number of threads. One is enough for a program.
 */
public final class HapaxClient implements IDGen, AutoCloseable {
    /** How many numbers a batch has unless the builder says so. */
    public static final int DEFAULT_BATCH = 1000;

    /** The largest batch, which is what servers give at once by default. */
    public static final int MAX_BATCH = 10_000;

    /** The most numbers that one call takes. */
    public static final int MAX_COUNT = 1_000_000;

    private static final Duration DEFAULT_TIMEOUT = Duration.ofSeconds(5);
    private static final Duration DEFAULT_CALL_TIMEOUT = Duration.ofSeconds(3);
    private static final Duration LONGEST = Duration.ofHours(1);
    private static final int MAX_TAGS = 10_000;
    private static final int MAX_TAG_BYTES = 128;

    private final Servers servers;
    private final int batch;
    private final Duration timeout;
    private final ExecutorService executor;
    private final ConcurrentHashMap<String, Line> lines = new ConcurrentHashMap<>();
    private volatile boolean closed;

    private HapaxClient(Builder b) {
        batch = b.batch;
        timeout = b.timeout;
        executor = Executors.newCachedThreadPool(task -> {
            Thread thread = new Thread(task, "hapax");
            thread.setDaemon(true);
            return thread;
        });
        servers = new Servers(b.addresses, b.tls, b.token, b.callTimeout, executor);
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
     * Issues a number, and waits for one if none is in hand.
     *
     * @param tag whose number
     * @return the number, which nobody else gets
     * @throws HapaxException if none came in time, or none will; an interrupted thread stays
     *     interrupted
     */
    public long next(String tag) {
        return next(tag, System.nanoTime() + timeout.toNanos());
    }

    /**
     * Issues several numbers, and waits until there are as many. If it fails, those that it had
     * by then are a gap.
     *
     * @param tag whose numbers
     * @param count how many, 1 to {@link #MAX_COUNT}
     * @return the numbers, which nobody else gets
     * @throws HapaxException as {@link #next(String)}
     */
    public long[] next(String tag, int count) {
        if (count < 1 || count > MAX_COUNT) {
            throw new HapaxException(Reason.REFUSED, "invalid_argument",
                    "hapax: invalid count " + count + ": want 1 to " + MAX_COUNT, null);
        }
        long deadline = System.nanoTime() + timeout.toNanos();
        long[] numbers = new long[count];
        for (int i = 0; i < count; i++) {
            numbers[i] = next(tag, deadline);
        }
        return numbers;
    }

    private long next(String tag, long deadline) {
        if (closed) {
            throw Servers.closed();
        }
        Line line = lines.get(tag);
        if (line == null) {
            line = open(tag);
        }
        try {
            return line.next(deadline);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new HapaxException(Reason.UNAVAILABLE, "", "hapax: the thread was interrupted while it waited", e);
        }
    }

    private Line open(String tag) {
        int bytes = tag.getBytes(StandardCharsets.UTF_8).length;
        if (bytes < 1 || bytes > MAX_TAG_BYTES) {
            throw new HapaxException(Reason.REFUSED, "invalid_tag",
                    "hapax: invalid tag of " + bytes + " bytes: want 1 to " + MAX_TAG_BYTES, null);
        }
        if (lines.size() >= MAX_TAGS) {
            throw new HapaxException(Reason.REFUSED, "limit_exceeded",
                    "hapax: this client has " + MAX_TAGS + " tags already; make another client for more", null);
        }
        return lines.computeIfAbsent(tag, t -> new Line(t, batch, servers, executor));
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
            return new Result(e.resultCode(), Status.EXCEPTION);
        } catch (NullPointerException e) { // no key
            return new Result(Result.NO_SUCH_KEY, Status.EXCEPTION);
        }
    }

    /** {@inheritDoc} Nothing else has to be done before the first number. */
    @Override
    public boolean init() {
        return servers.answers();
    }

    /** Ends the client. What it has in hand is a gap. */
    @Override
    public void close() {
        closed = true;
        servers.close();
        executor.shutdownNow();
    }

    /** Makes a client. Every setting has a default. */
    public static final class Builder {
        private final List<String> addresses = new ArrayList<>();
        private String token;
        private SSLContext tls;
        private int batch = DEFAULT_BATCH;
        private Duration timeout = DEFAULT_TIMEOUT;
        private Duration callTimeout = DEFAULT_CALL_TIMEOUT;

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
         * Sets how many numbers are fetched at once. Default {@link #DEFAULT_BATCH}. A program
         * that wants more than a few thousand a second needs more; each end of the program
         * leaves a gap of up to two batches a tag.
         *
         * @param numbers 1 to {@link #MAX_BATCH}, and no more than the servers' max_count
         * @return this
         * @throws IllegalArgumentException for another number
         */
        public Builder batch(int numbers) {
            if (numbers < 1 || numbers > MAX_BATCH) {
                throw new IllegalArgumentException("invalid batch " + numbers + ": want 1 to " + MAX_BATCH);
            }
            batch = numbers;
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
            timeout = check("timeout", longest);
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
            callTimeout = check("callTimeout", longest);
            return this;
        }

        private static Duration check(String name, Duration d) {
            if (d.isNegative() || d.isZero() || d.compareTo(LONGEST) > 0) {
                throw new IllegalArgumentException("invalid " + name + " " + d + ": want more than 0, up to " + LONGEST);
            }
            return d;
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
