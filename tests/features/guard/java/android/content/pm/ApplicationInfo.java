package android.content.pm;

public class ApplicationInfo {
    public String sourceDir = System.getProperty("package", "none");
    public String[] splitSourceDirs;
    public String nativeLibraryDir = System.getProperty("libraries", "none");
}
