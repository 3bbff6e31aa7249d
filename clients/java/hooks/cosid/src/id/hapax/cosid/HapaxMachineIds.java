package id.hapax.cosid;

import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.UUID;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.logging.Logger;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import me.ahoo.cosid.CosIdException;
import me.ahoo.cosid.machine.InstanceId;
import me.ahoo.cosid.machine.MachineIdDistributor;
import me.ahoo.cosid.machine.MachineIdLostException;
import me.ahoo.cosid.machine.MachineState;
import me.ahoo.cosid.snowflake.SnowflakeId;

/**
 * Machine IDs of CosId, granted by hapax for a time: {@code hapax worker hold --http
 * 127.0.0.1:8090 --for cosid} beside the program, once for each program.
 *
 * <pre>{@code
 * HapaxMachineIds machines = new HapaxMachineIds(URI.create("http://127.0.0.1:8090/"));
 * int machine = machines.distribute("orders", 10, InstanceId.NONE, Duration.ZERO).getMachineId();
 * SnowflakeId orders = machines.guarded(new MillisecondSnowflakeId(machine));
 * }</pre>
 *
 * <p>CosId logs that a machine ID is lost, and goes on with it. A {@link #guarded} generator fails
 * from then on instead: another program may have the ID.
 */
public final class HapaxMachineIds implements MachineIdDistributor, AutoCloseable {
    private static final Logger LOG = Logger.getLogger("id.hapax.cosid");
    private static final Pattern ANSWER = Pattern.compile("\\{\"worker\":([0-9]{1,9}),.*\"until_ms\":([0-9]{1,15})\\}\\s*");
    private static final Duration TIMEOUT = Duration.ofSeconds(5);

    /** What was told. */
    private record Held(int id, long end, long endWall) {}

    private final URI hold;
    private final HttpClient http = HttpClient.newBuilder().proxy(HttpClient.Builder.NO_PROXY).connectTimeout(TIMEOUT).build();
    private volatile Held held; // null: none, or no more
    private ScheduledExecutorService asking; // guarded by this

    /**
     * Makes it. It asks at the first {@link #distribute}.
     *
     * @param hold where {@code worker hold} answers
     */
    public HapaxMachineIds(URI hold) {
        this.hold = hold.resolve("/?holder=" + UUID.randomUUID()); // which no other program has
    }

    @Override
    public synchronized MachineState distribute(String namespace, int machineBit, InstanceId instanceId, Duration safeGuardDuration) {
        Held now = held;
        if (over(now)) {
            try {
                now = ask("GET");
            } catch (IOException e) {
                throw new CosIdException("hapax: no machine ID: " + e.getMessage(), e);
            }
        }
        if (now.id > MachineIdDistributor.maxMachineId(machineBit)) {
            release();
            throw new CosIdException("hapax: invalid machine ID " + now.id + ": want 0 to " + MachineIdDistributor.maxMachineId(machineBit) + "; give worker hold --workers");
        }
        held = now;
        if (asking == null) {
            asking = Executors.newSingleThreadScheduledExecutor(task -> {
                Thread thread = new Thread(task, "hapax-cosid");
                thread.setDaemon(true);
                return thread;
            });
            asking.scheduleWithFixedDelay(this::extend, 1, 1, TimeUnit.SECONDS);
        }
        return MachineState.of(now.id);
    }

    /** Asks for how long the ID may be used. */
    private synchronized void extend() {
        Held before = held;
        if (before == null) {
            return;
        }
        try {
            Held now = ask("GET");
            held = now.id == before.id ? now : null;
        } catch (RefusedException e) {
            held = null;
            LOG.severe("hapax: the machine ID " + before.id + " is lost: " + e.getMessage());
        } catch (IOException e) {
            LOG.warning("hapax: worker hold does not answer: " + e.getMessage()); // what was told stays true
        }
    }

    @Override
    public void guard(String namespace, InstanceId instanceId, Duration safeGuardDuration) {
        Held now = held;
        if (over(now)) {
            throw new MachineIdLostException(namespace, instanceId, now == null ? MachineState.NOT_FOUND : MachineState.of(now.id));
        }
    }

    @Override
    public void revert(String namespace, InstanceId instanceId) {
        close();
    }

    /** Gives the ID back. Guarded generators fail from here on. */
    @Override
    public synchronized void close() {
        if (asking != null) {
            asking.shutdownNow();
            asking = null;
        }
        release();
    }

    private void release() {
        held = null;
        try {
            ask("DELETE");
        } catch (IOException e) {
            LOG.fine("hapax: the machine ID comes free when its time is over: " + e.getMessage());
        }
    }

    /**
     * Returns a generator that fails as soon as the machine ID may be another program's.
     *
     * @param generator with the machine ID that was distributed
     * @return the same numbers, as long as they are nobody else's
     */
    public SnowflakeId guarded(SnowflakeId generator) {
        return new GuardedSnowflakeId(generator, () -> guard("hapax", InstanceId.NONE, Duration.ZERO));
    }

    private static boolean over(Held held) {
        // The monotonic clock may stand still while a machine sleeps.
        return held == null || System.nanoTime() - held.end >= 0 || System.currentTimeMillis() >= held.endWall;
    }

    /** Says that the ID is not, or not any more, this program's. */
    private static final class RefusedException extends IOException {
        private static final long serialVersionUID = 1;

        RefusedException(String why) {
            super(why);
        }
    }

    private Held ask(String method) throws IOException {
        long sent = System.nanoTime();
        try {
            HttpRequest request = HttpRequest.newBuilder(hold).timeout(TIMEOUT).method(method, HttpRequest.BodyPublishers.noBody()).build();
            HttpResponse<String> answer = http.send(request, HttpResponse.BodyHandlers.ofString());
            Matcher told = ANSWER.matcher(answer.body());
            if (answer.statusCode() >= 400) {
                throw new RefusedException(answer.body().trim());
            }
            if (method.equals("DELETE")) {
                return null;
            }
            if (!told.matches()) {
                throw new IOException(hold + " is no worker hold --for cosid");
            }
            long endWall = Long.parseLong(told.group(2));
            long left = TimeUnit.MILLISECONDS.toNanos(endWall - System.currentTimeMillis());
            return new Held(Integer.parseInt(told.group(1)), sent + left, endWall);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new IOException("interrupted", e);
        }
    }
}
