package id.hapax.hibernate;

import id.hapax.client.HapaxClient;
import id.hapax.client.HapaxException;
import id.hapax.client.Tag;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;
import org.hibernate.HibernateException;
import org.hibernate.MappingException;
import org.hibernate.SessionFactory;
import org.hibernate.SessionFactoryObserver;
import org.hibernate.engine.config.spi.ConfigurationService;
import org.hibernate.engine.spi.SessionFactoryImplementor;
import org.hibernate.engine.spi.SharedSessionContractImplementor;
import org.hibernate.generator.GeneratorCreationContext;
import org.hibernate.id.IdentifierGenerator;
import org.hibernate.service.ServiceRegistry;

/**
 * Issues identifiers from the memory of a hapax client. No lock is held while more are fetched:
 * writers go on with what is in hand.
 */
public final class HapaxIdGenerator implements IdentifierGenerator {
    /** The setting of a {@link HapaxClient} that the program made, and closes. */
    public static final String CLIENT = "hapax.client";

    /** The setting of the servers' addresses, with commas, in place of a client. */
    public static final String SERVERS = "hapax.servers";

    /** The setting of the servers' token, if they want one. */
    public static final String TOKEN = "hapax.token";

    private static final long serialVersionUID = 1;

    /** Clients that this made, one for each registry of settings, until its sessions' factory is closed. */
    private static final Map<ServiceRegistry, HapaxClient> OWN = new ConcurrentHashMap<>();

    private final String name;
    private boolean text;
    private transient Tag tag;
    private transient ServiceRegistry registry;
    private transient volatile boolean watched;

    /**
     * Makes the generator of an entity. Hibernate calls it.
     *
     * @param id what the entity says
     */
    public HapaxIdGenerator(HapaxId id) {
        name = id.value();
    }

    @Override
    public void configure(GeneratorCreationContext context, Properties parameters) {
        Class<?> type = context.getType().getReturnedClass();
        text = type == String.class;
        if (!text && type != Long.class && type != long.class) {
            throw new MappingException("invalid type " + type.getName() + " of @HapaxId(\"" + name + "\"): want Long or String");
        }
        registry = context.getServiceRegistry();
        Map<String, Object> settings = registry.requireService(ConfigurationService.class).getSettings();
        Object given = settings.get(CLIENT);
        HapaxClient client = given instanceof HapaxClient ? (HapaxClient) given : OWN.computeIfAbsent(registry, r -> connect(settings));
        try {
            tag = client.tag(name);
        } catch (HapaxException e) {
            throw new MappingException(e.getMessage(), e);
        }
    }

    private static HapaxClient connect(Map<String, Object> settings) {
        if (!(settings.get(SERVERS) instanceof String)) {
            throw new MappingException("neither " + CLIENT + " nor " + SERVERS + " is set: want a HapaxClient, or addresses such as http://127.0.0.1:8080");
        }
        HapaxClient.Builder builder = HapaxClient.builder(((String) settings.get(SERVERS)).trim().split("\\s*,\\s*"));
        if (settings.get(TOKEN) instanceof String) {
            builder.token((String) settings.get(TOKEN));
        }
        return builder.build();
    }

    @Override
    public Object generate(SharedSessionContractImplementor session, Object entity) {
        if (!watched) {
            watch(session.getFactory());
        }
        try {
            long id = tag.next();
            return text ? (Object) String.valueOf(id) : (Object) id;
        } catch (HapaxException e) {
            throw new HibernateException("no number of " + name + ": " + e.getMessage(), e);
        }
    }

    /** Has the client closed with the sessions' factory, if this made it. */
    private void watch(SessionFactoryImplementor factory) {
        watched = true; // twice does no harm
        factory.addObserver(new SessionFactoryObserver() {
            private static final long serialVersionUID = 1;

            @Override
            public void sessionFactoryClosed(SessionFactory closed) {
                HapaxClient own = OWN.remove(registry);
                if (own != null) {
                    own.close();
                }
            }
        });
    }
}
