package id.hapax.client;

/** A number of a tag that has a code. */
public final class Code {
    private final long id;
    private final String text;
    private final String period;

    Code(long id, String text, String period) {
        this.id = id;
        this.text = text;
        this.period = period;
    }

    /**
     * Returns the number.
     *
     * @return the number
     */
    public long id() {
        return id;
    }

    /**
     * Returns the text that shows the number.
     *
     * @return the code
     */
    public String text() {
        return text;
    }

    /**
     * Returns the period of the number.
     *
     * @return the period; empty where numbers never restart
     */
    public String period() {
        return period;
    }

    /** Returns the code. */
    @Override
    public String toString() {
        return text;
    }
}
