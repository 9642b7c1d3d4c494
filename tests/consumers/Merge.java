import com.android.ide.common.res2.AssetMerger;
import com.android.ide.common.res2.AssetSet;
import com.android.ide.common.res2.MergedAssetWriter;
import com.android.utils.StdLogger;
import java.io.File;

/** What an app's build makes of the assets of its packages: the folder to write, then theirs. */
public class Merge {
    public static void main(String[] folders) throws Exception {
        StdLogger log = new StdLogger(StdLogger.Level.WARNING);
        AssetMerger merger = new AssetMerger();
        for (int i = 1; i < folders.length; i++) {
            AssetSet assets = new AssetSet(folders[i]);
            assets.addSource(new File(folders[i]));
            assets.loadFromFiles(log);
            merger.addDataSet(assets);
        }
        merger.mergeData(new MergedAssetWriter(new File(folders[0])), true);
        System.exit(0);  // it leaves threads behind
    }
}
