package id.hapax.mybatisplus;

import com.baomidou.mybatisplus.core.incrementer.IdentifierGenerator;
import com.baomidou.mybatisplus.core.metadata.TableInfo;
import com.baomidou.mybatisplus.core.metadata.TableInfoHelper;
import id.hapax.client.HapaxClient;

/**
 * Issues the identifiers of entities with {@code IdType.ASSIGN_ID}. The tag is the name of the
 * entity's table.
 */
public class HapaxIdentifierGenerator implements IdentifierGenerator {
    private final HapaxClient client;

    /**
     * Makes it.
     *
     * @param client what issues the numbers; whoever made it closes it
     */
    public HapaxIdentifierGenerator(HapaxClient client) {
        this.client = client;
    }

    /**
     * Returns the tag of an entity. Subclasses may have other tags.
     *
     * @param entity whose
     * @return the tag
     */
    protected String tag(Object entity) {
        TableInfo table = TableInfoHelper.getTableInfo(entity.getClass());
        if (table == null) {
            throw new IllegalStateException("no table of " + entity.getClass().getName() + " is known, which would be the tag");
        }
        return table.getTableName();
    }

    @Override
    public Number nextId(Object entity) {
        return client.next(tag(entity));
    }
}
