package id.hapax.client;

/** Whether a call got a number. */
public enum Status {
    /** The result holds a number. */
    SUCCESS,

    /** The result holds a code that says why there is none. */
    EXCEPTION
}
