import java.io.File;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.stream.Stream;
import org.gradle.api.Project;
import org.gradle.api.artifacts.Configuration;
import org.gradle.api.artifacts.result.ResolvedArtifactResult;
import org.gradle.api.attributes.Attribute;
import org.gradle.api.attributes.Category;
import org.gradle.api.attributes.Usage;
import org.gradle.testfixtures.ProjectBuilder;

/** Resolves dependencies as an app's build does. Each line of the cases: name|repositories|notations|module to select. */
public class Resolve {
    public static void main(String[] arguments) throws Exception {
        Path folder = Path.of(arguments[0]);
        for (String line : Files.readAllLines(folder.resolve("cases"))) {
            String[] one = line.split("\\|", -1);
            String said;
            try {
                said = resolved(folder, one);
            } catch (Throwable error) {
                said = reasons(error);
            }
            Files.writeString(folder.resolve(one[0]), said);
        }
        System.exit(0);  // Gradle leaves threads behind
    }

    static String resolved(Path folder, String[] one) throws Exception {
        File home = folder.resolve("gradle home").toFile();
        File place = Files.createDirectories(folder.resolve("project " + one[0])).toFile();
        Project project = ProjectBuilder.builder().withProjectDir(place).withGradleUserHomeDir(home).build();
        for (String url : one[1].split(" ")) {
            project.getRepositories().maven(repository -> repository.setUrl(url));
        }
        Configuration classes = project.getConfigurations().create("releaseRuntimeClasspath");
        classes.setCanBeConsumed(false);
        classes.attributes(wanted -> {
            wanted.attribute(Usage.USAGE_ATTRIBUTE, project.getObjects().named(Usage.class, Usage.JAVA_RUNTIME));
            wanted.attribute(
                    Category.CATEGORY_ATTRIBUTE, project.getObjects().named(Category.class, Category.LIBRARY));
            wanted.attribute(Attribute.of("org.gradle.jvm.environment", String.class), "android");
        });
        for (String notation : one[2].split(" ")) {
            project.getDependencies().add(classes.getName(), notation);
        }
        if (!one[3].isEmpty()) {
            String[] selected = one[3].split(" ");
            classes.getResolutionStrategy().capabilitiesResolution(all -> all.withCapability(
                    selected[0].split(":")[0], selected[0].split(":")[1], found -> found.select(selected[1])));
        }
        StringBuilder said = new StringBuilder();
        for (ResolvedArtifactResult artifact : classes.getIncoming().getArtifacts()) {
            said.append(artifact.getFile().getName()).append(' ').append(artifact.getVariant().getDisplayName());
            said.append('\n');
        }
        return said.toString();
    }

    static String reasons(Throwable error) {
        return error == null ? "" : "FAILED " + error.getMessage() + "\n" + reasons(error.getCause());
    }
}
