/**
 * Unique numbers from hapax servers, for Java programs. Begin with {@link
 * id.hapax.client.HapaxClient}.
 */
package id.hapax.client;
