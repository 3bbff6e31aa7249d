package id.hapax.cosid;

import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
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
 * from then on instead, for good: another program may have the ID, and have given it back. After
 * another {@link #distribute} the program makes a new generator.
 *
 * <p>All namespaces of a program have one machine ID. Of each, one instance has it.
 */
public final class HapaxMachineIds implements MachineIdDistributor, AutoCloseable {
    private static final Logger LOG = Logger.getLogger("id.hapax.cosid");
    private static final Pattern ANSWER = Pattern.compile("\\{\"worker\":([0-9]{1,9}),.*\"until_ms\":([0-9]{1,15})\\}\\s*");
    private static final Duration TIMEOUT = Duration.ofSeconds(5);

    /** What was told: the ID, and its end by two clocks. */
    private record Told(int id, long end, long endWall) {}

    /** A machine ID from its distribution until its end, after which it is never taken up again. */
    private static final class Tenure {
        final int id;
        private final long began = System.currentTimeMillis();
        private volatile Told told; // null: ended

        Tenure(Told told) {
            id = told.id;
            this.told = told;
        }

        boolean isOver() {
            Told now = told;
            long wall = System.currentTimeMillis();
            // The monotonic clock may stand still while a machine sleeps. A wall clock that was set back to before
            // the beginning shows another program's time.
            return now == null || System.nanoTime() - now.end >= 0 || wall >= now.endWall || wall < began;
        }

        void end() {
            told = null;
        }
    }

    /** Which instance of a namespace has the machine ID. */
    private record Seat(InstanceId instance, Tenure tenure, boolean isReverted) {}

    private final URI hold;
    private final HttpClient http = HttpClient.newBuilder().proxy(HttpClient.Builder.NO_PROXY).connectTimeout(TIMEOUT).build();
    private final Map<String, Seat> seats = new ConcurrentHashMap<>(); // by namespace; written under this
    private volatile Tenure tenure; // the latest; null: none; written under this
    private URI asked; // guarded by this
    private ScheduledExecutorService asking; // guarded by this

    /**
     * Makes it. It asks at the first {@link #distribute}.
     *
     * @param hold where {@code worker hold} answers
     */
    public HapaxMachineIds(URI hold) {
        this.hold = hold;
        rename();
    }

    /** Takes a name that no other program has, nor this one had: a late request to give up is of an old one. */
    private synchronized void rename() {
        asked = hold.resolve("/?holder=" + UUID.randomUUID());
    }

    @Override
    public synchronized MachineState distribute(String namespace, int machineBit, InstanceId instanceId, Duration safeGuardDuration) {
        Tenure now = tenure;
        if (now == null || now.isOver()) {
            now = acquire();
        }
        if (now.id > MachineIdDistributor.maxMachineId(machineBit)) {
            releaseUnused();
            throw new CosIdException("hapax: invalid machine ID " + now.id + ": want 0 to " + MachineIdDistributor.maxMachineId(machineBit) + "; give worker hold --workers");
        }
        Seat seat = seats.get(namespace);
        if (seat != null && seat.tenure == now && (seat.isReverted || !seat.instance.equals(instanceId))) {
            throw new CosIdException("hapax: instance " + seat.instance.getInstanceId() + " of namespace " + namespace + " may still use the machine ID " + now.id + ": want one instance of each; give others a HapaxMachineIds and a worker hold of their own");
        }
        seats.put(namespace, new Seat(instanceId, now, false));
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

    private synchronized Tenure acquire() {
        try {
            Told told = ask("GET");
            end(); // the earlier one
            tenure = new Tenure(told);
            return tenure;
        } catch (IOException e) {
            throw new CosIdException("hapax: no machine ID: " + e.getMessage(), e);
        }
    }

    /** Asks for how long the ID may be used. */
    private synchronized void extend() {
        Tenure now = tenure;
        if (now == null) {
            return;
        }
        try {
            if (now.isOver()) { // before the answer: the ID may have been another program's since
                throw new RefusedException("its time is over");
            }
            Told told = ask("GET");
            if (told.id != now.id) { // of another worker hold at that address
                release();
                throw new RefusedException("worker hold has " + told.id);
            }
            now.told = told;
        } catch (RefusedException e) {
            end();
            LOG.severe("hapax: the machine ID " + now.id + " is lost: " + e.getMessage());
        } catch (IOException e) {
            LOG.warning("hapax: worker hold does not answer: " + e.getMessage()); // what was told stays true
        }
    }

    @Override
    public void guard(String namespace, InstanceId instanceId, Duration safeGuardDuration) {
        Seat seat = seats.get(namespace);
        if (seat == null || seat.isReverted || !seat.instance.equals(instanceId) || seat.tenure.isOver()) {
            throw new MachineIdLostException(namespace, instanceId, seat == null ? MachineState.NOT_FOUND : MachineState.of(seat.tenure.id));
        }
    }

    /** Gives the ID back with the last namespace that has it. Until then its generators go on. */
    @Override
    public synchronized void revert(String namespace, InstanceId instanceId) {
        Seat seat = seats.get(namespace);
        if (seat == null || !seat.instance.equals(instanceId)) {
            return;
        }
        // It stays: nobody else of the namespace must have the ID while its generators may go on.
        seats.put(namespace, new Seat(instanceId, seat.tenure, true));
        if (seats.values().stream().allMatch(Seat::isReverted)) {
            close();
        }
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

    private synchronized void releaseUnused() {
        if (seats.isEmpty()) {
            release();
        }
    }

    private synchronized void end() {
        if (tenure != null) {
            tenure.end();
        }
        tenure = null;
        seats.clear();
    }

    private synchronized void release() {
        end(); // first: afterwards another program may have it
        try {
            ask("DELETE");
        } catch (IOException e) {
            LOG.fine("hapax: the machine ID comes free when its time is over: " + e.getMessage());
        }
        rename();
    }

    /**
     * Returns a generator that fails as soon as the machine ID may be another program's.
     *
     * @param generator with the machine ID that was distributed
     * @return the same numbers, as long as they are nobody else's
     * @throws CosIdException if it has another machine ID
     */
    public SnowflakeId guarded(SnowflakeId generator) {
        Tenure now = tenure;
        if (now == null || now.id != generator.getMachineId()) {
            throw new CosIdException("hapax: invalid machine ID " + generator.getMachineId() + " of a generator: want " + (now == null ? "one that was distributed" : now.id));
        }
        return new GuardedSnowflakeId(generator, () -> {
            if (now.isOver()) {
                throw new MachineIdLostException("hapax", InstanceId.NONE, MachineState.of(now.id));
            }
        });
    }

    /** Says that the ID is not, or not any more, this program's. */
    private static final class RefusedException extends IOException {
        private static final long serialVersionUID = 1;

        RefusedException(String why) {
            super(why);
        }
    }

    private synchronized Told ask(String method) throws IOException {
        long sent = System.nanoTime();
        try {
            HttpRequest request = HttpRequest.newBuilder(asked).timeout(TIMEOUT).method(method, HttpRequest.BodyPublishers.noBody()).build();
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
            return new Told(Integer.parseInt(told.group(1)), sent + left, endWall);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new IOException("interrupted", e);
        }
    }
}
