package id.hapax.client;

/**
 * What {@link IDGen#get} returns: a number, or why there is none.
 */
public final class Result {
    /** The code of a client that was closed. */
    public static final long NOT_READY = -1;

    /** The code of a key that no server knows, or that was deleted. */
    public static final long NO_SUCH_KEY = -2;

    /** The code of a key whose numbers are used up, while no server gives more in time. */
    public static final long NOTHING_LEFT = -3;

    /** The code of any other refusal, such as a wrong token. */
    public static final long REFUSED = -4;

    static final long[] CODES = {NOTHING_LEFT, NO_SUCH_KEY, REFUSED, NOT_READY}; // of HapaxException.Reason

    private final long id;
    private final Status status;

    /**
     * Makes a result.
     *
     * @param id the number, or one of the codes above if the status is {@link Status#EXCEPTION}
     * @param status whether {@code id} is a number
     */
    public Result(long id, Status status) {
        this.id = id;
        this.status = status;
    }

    /**
     * Returns the number, or a code.
     *
     * @return {@code id}
     */
    public long getId() {
        return id;
    }

    /**
     * Returns whether there is a number.
     *
     * @return {@code status}
     */
    public Status getStatus() {
        return status;
    }

    /** Returns the text that Leaf's has. */
    @Override
    public String toString() {
        return "Result{id=" + id + ", status=" + status + "}";
    }
}
