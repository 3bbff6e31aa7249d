package id.hapax.spring;

import id.hapax.client.HapaxClient;
import java.io.IOException;
import java.security.GeneralSecurityException;
import org.springframework.boot.autoconfigure.AutoConfiguration;
import org.springframework.boot.autoconfigure.condition.ConditionalOnClass;
import org.springframework.boot.autoconfigure.condition.ConditionalOnMissingBean;
import org.springframework.boot.context.properties.EnableConfigurationProperties;
import org.springframework.boot.health.autoconfigure.contributor.ConditionalOnEnabledHealthIndicator;
import org.springframework.boot.health.contributor.Health;
import org.springframework.boot.health.contributor.HealthIndicator;
import org.springframework.boot.hibernate.autoconfigure.HibernatePropertiesCustomizer;
import org.springframework.context.SmartLifecycle;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;

/** Makes a client of the program's properties, and lets Hibernate and Actuator know it. */
@AutoConfiguration(beforeName = "org.springframework.boot.hibernate.autoconfigure.HibernateJpaAutoConfiguration")
@EnableConfigurationProperties(HapaxProperties.class)
public class HapaxAutoConfiguration {
    /**
     * Makes the client, which connects at its first use, and is closed with the program.
     *
     * @param p its properties
     * @return the client
     * @throws IOException if the file of certificates cannot be read
     * @throws GeneralSecurityException if there is something else in it
     */
    @Bean(destroyMethod = "close")
    @ConditionalOnMissingBean
    public HapaxClient hapaxClient(HapaxProperties p) throws IOException, GeneralSecurityException {
        HapaxClient.Builder builder = HapaxClient.builder(p.servers().toArray(new String[0]))
                .step(p.minStep(), p.maxStep())
                .ahead(p.ahead())
                .timeout(p.timeout())
                .callTimeout(p.callTimeout());
        if (p.token() != null && !p.token().isEmpty()) {
            builder.token(p.token());
        }
        if (p.ca() != null) {
            builder.ca(p.ca());
        }
        return builder.build();
    }

    /**
     * Hands back what is in hand when the program stops, and before a checkpoint of CRaC, for which
     * Spring stops it, too: each copy of the process begins with nothing.
     *
     * @param client which
     * @return what does
     */
    @Bean
    public SmartLifecycle hapaxLifecycle(HapaxClient client) {
        return new SmartLifecycle() {
            private volatile boolean running;

            @Override
            public void start() {
                running = true;
            }

            @Override
            public void stop() {
                running = false;
                client.handBack();
            }

            @Override
            public boolean isRunning() {
                return running;
            }

            @Override
            public int getPhase() {
                return Integer.MIN_VALUE; // whoever takes numbers stops before
            }
        };
    }

    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(HibernatePropertiesCustomizer.class)
    static class Hibernate {
        @Bean
        HibernatePropertiesCustomizer hapaxHibernate(HapaxClient client) {
            return properties -> properties.put("hapax.client", client);
        }
    }

    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass({HealthIndicator.class, ConditionalOnEnabledHealthIndicator.class})
    static class Actuator {
        @Bean
        @ConditionalOnMissingBean(name = "hapaxHealthIndicator")
        @ConditionalOnEnabledHealthIndicator("hapax")
        HealthIndicator hapaxHealthIndicator(HapaxClient client, HapaxProperties p) {
            return () -> (client.init() ? Health.up() : Health.down()).withDetail("servers", p.servers()).build();
        }
    }
}
